package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/evidence"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/progress"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// The nodes of a job hang when none of them has a worker that lives; those that tell steps count alone.
func TestJudgement(t *testing.T) {
	const timeout = 10 * time.Second
	begin := time.Now()
	n := func(silent time.Duration, exact bool, workers int) *lifeNote {
		return &lifeNote{Count: 1, Silent: silent, Exact: exact, Workers: workers}
	}
	for name, c := range map[string]struct {
		notes  []*lifeNote
		old    []int // nodes that have said nothing new for long
		hangs  bool
		absent int
	}{
		"all":                         {[]*lifeNote{n(11*time.Second, false, 2), n(12*time.Second, false, 2)}, nil, true, 0},
		"one lives":                   {[]*lifeNote{n(11*time.Second, false, 2), n(time.Second, false, 2)}, nil, false, 0},
		"one has said nothing yet":    {[]*lifeNote{n(11*time.Second, false, 2), nil}, nil, false, 0},
		"one is silent itself":        {[]*lifeNote{n(11*time.Second, false, 2), n(0, false, 2)}, []int{1}, true, 1},
		"steps count alone":           {[]*lifeNote{n(0, false, 2), n(11*time.Second, true, 2)}, nil, true, 0},
		"there are steps":             {[]*lifeNote{n(11*time.Second, false, 2), n(time.Second, true, 2)}, nil, false, 0},
		"a node without workers":      {[]*lifeNote{n(11*time.Second, false, 2), n(0, false, 0)}, nil, true, 0},
		"no workers":                  {[]*lifeNote{n(0, false, 0), n(0, false, 0)}, nil, false, 0},
		"the one with steps is stale": {[]*lifeNote{n(time.Second, false, 2), n(11*time.Second, true, 2)}, []int{1}, false, 1},
	} {
		w := worldLife{nodes: make([]heardLife, len(c.notes)), stale: lifeStale}
		now := begin.Add(time.Hour)
		for i, note := range c.notes {
			if note == nil {
				continue
			}
			if slices.Contains(c.old, i) {
				w.take(i, *note, begin)
			}
			w.take(i, *note, now)
		}
		j := w.judge(now)
		if _, hang := j.hangs(timeout); hang != c.hangs || len(j.absent) != c.absent {
			t.Errorf("%s: %+v", name, j)
		}
	}
}

// A program whose script has ended finishes no step any more: what Python does until it is gone counts as life.
func TestLifeAfterTheScript(t *testing.T) {
	packages := filepath.Join(t.TempDir(), "python")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	for text, exact := range map[string]bool{"muster.progress.step(1)": false, "muster.progress.step(1); os._exit(0)": true} {
		dir := t.TempDir()
		f, err := progress.Create(dir, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		cmd := exec.CommandContext(t.Context(), "python3", "-c", "import muster, os; "+text)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1", "MUSTER_RUN_DIR="+dir, "RANK=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var told []progress.Reading
		if got := new(life).hear(&worker{progress: f}, time.Now(), false, &told); got != exact || len(told) != 1 {
			t.Errorf("%s: its steps count alone: %v; %+v", text, got, told)
		}
	}
}

// What was learned counts for the world where the longest time-out of nodes with steps is over: without any sign of
// life, or for much longer without a step. The unit of the times in it does not matter.
func TestJudgementAuto(t *testing.T) {
	for name, c := range map[string]struct {
		notes    []lifeNote
		limit    time.Duration // 0: it does not hang
		nosigns  bool
		silentIs time.Duration
	}{
		"quiet": {
			[]lifeNote{
				{Exact: true, Workers: 1, Silent: 90, Quiet: 70, QuietLimit: 60, StepLimit: 1800},
				{Workers: 1, Silent: 80, Quiet: 80, QuietLimit: 1800, StepLimit: 1800},
			}, 60, true, 70,
		},
		"one without steps computes": {
			[]lifeNote{
				{Exact: true, Workers: 1, Silent: 90, Quiet: 90, QuietLimit: 60, StepLimit: 1800},
				{Workers: 1, QuietLimit: 1800, StepLimit: 1800},
			}, 0, false, 0,
		},
		"the longer one": {
			[]lifeNote{
				{Exact: true, Workers: 1, Silent: 90, Quiet: 90, QuietLimit: 60, StepLimit: 1800},
				{Exact: true, Workers: 1, Silent: 90, Quiet: 90, QuietLimit: 100, StepLimit: 1800},
			}, 0, false, 0,
		},
		"busy without a step": {
			[]lifeNote{
				{Exact: true, Workers: 1, Silent: 1900, Quiet: 0, QuietLimit: 60, StepLimit: 1800},
				{Exact: true, Workers: 1, Silent: 2000, Quiet: 90, QuietLimit: 60, StepLimit: 1700},
			}, 1800, false, 1900,
		},
		"no steps at all":    {[]lifeNote{{Workers: 1, Silent: 1800, Quiet: 1800, QuietLimit: 1800, StepLimit: 1800}}, 1800, true, 1800},
		"no steps, and life": {[]lifeNote{{Workers: 1, Silent: 1700, Quiet: 1700, QuietLimit: 1800, StepLimit: 1800}}, 0, false, 0},
	} {
		w := worldLife{nodes: make([]heardLife, len(c.notes)), stale: lifeStale}
		now := time.Now()
		for i, n := range c.notes {
			w.take(i, n, now)
		}
		s, hangs := w.judge(now).hangs(0)
		if want := (silence{c.silentIs, c.limit, c.nosigns}); hangs != (c.limit > 0) || hangs && s != want {
			t.Errorf("%s: %v %+v, want %+v", name, hangs, s, want)
		}
	}
}

// Nodes tell each other how long they are silent. The one that decides knows it from all, goes on without one that says
// nothing any more, and begins anew when it was stopped itself; one that has said nothing from the beginning is named.
func TestLifeOnTheBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		space := memstore.NewSpace()
		var log testutil.Buffer
		var watches []*lifeWatch
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 3 {
			w := newLifeWatch(&rendezvous.Round{GroupRank: i, GroupWorldSize: 3, Exchange: boardOf{board: space.Client()}}, timeout)
			w.log = zerolog.New(&log)
			w.names = func(context.Context) []string { return []string{"a", "b", "c"} }
			watches = append(watches, w)
			wg.Go(func() { w.hear(ctx, timeout) })
		}
		hangs := func(j judgement) bool { _, is := j.hangs(timeout); return is }
		say := func(silent time.Duration, from ...int) judgement {
			for _, i := range from {
				watches[i].say(t.Context(), lifeNote{Silent: silent, Workers: 1}, time.Now())
			}
			time.Sleep(watches[0].every + worldTime)
			return watches[0].judge(time.Now())
		}
		for range 15 {
			if j := say(2*timeout, 0, 1); hangs(j) || !slices.Equal(j.unheard, []int{2}) {
				t.Errorf("%+v", j)
			}
		}
		if text := log.String(); !strings.Contains(text, `"nodes":["c"]`) || strings.Count(text, "--hang-timeout") != 1 {
			t.Error(text)
		}
		if j := say(timeout, 0, 1, 2); !hangs(j) || j.silent != timeout || j.workers != 3 {
			t.Errorf("%+v", j)
		}
		if j := say(time.Second, 2); hangs(j) || j.silent != time.Second {
			t.Errorf("%+v", j)
		}
		var j judgement
		for range 8 {
			j = say(2*timeout, 0, 1)
		}
		if !hangs(j) || !slices.Equal(j.absent, []int{2}) {
			t.Errorf("%+v", j)
		}
		watches[0].forget()
		if j := watches[0].judge(time.Now()); hangs(j) {
			t.Errorf("%+v", j)
		}
		if j := say(2*timeout, 0, 1); hangs(j) || j.workers != 3 || j.silent != time.Second {
			t.Errorf("what was read again: %+v", j)
		}
		cancel()
		wg.Wait()
	})
}

// A node that asks gets an answer of each node of the round, or its name.
func TestLookOnTheBoard(t *testing.T) {
	t.Parallel()
	space := memstore.NewSpace()
	a, endA := testSteering(t, "node-0", 0, 3, space.Client())
	b, endB := testSteering(t, "node-1", 1, 3, space.Client())
	defer endA()
	defer endB()
	hostile := space.Client()
	for n := range 8 {
		if err := hostile.Set(t.Context(), seenKey(n, 2), []byte("no evidence")); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range []*Steering{a, b, a, a} {
		seen, err := served{s}.Look(t.Context(), control.World, false)
		if err == nil || errhint.CodeOf(err) != errhint.TryAgain { // nobody has workers
			t.Errorf("%d: %v", i, err)
		}
		if len(seen.Nodes) != 2 || seen.Nodes[0].Node != "node-0" || seen.Nodes[1].Node != "node-1" ||
			!slices.Equal(seen.Missing, []string{"group rank 2"}) || len(seen.Nodes[1].Notes) != 1 {
			t.Errorf("%d: %+v", i, seen)
		}
	}
	if text, err := hostile.Get(t.Context(), seenKey(0, 1)); err != nil || len(text) > 0 {
		t.Errorf("the first answer stays: %d bytes, %v", len(text), err)
	}
}

// What nodes tell each other has a bound whatever was seen, keeps what verdicts are made of as long as it can, and is
// taken with care.
func TestPackSeen(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	frames := func(n int, word string) (all []evidence.Frame) {
		for i := range n {
			all = append(all, evidence.Frame{
				Func: word + strconv.Itoa(i*7919), File: "/usr/lib/python3/" + word + "/" + strconv.Itoa(i*104729) + ".py", Line: i,
			})
		}
		return all
	}
	var n evidence.Node
	n.Node = "a\x1b[2J"
	for rank := range 24 {
		r := evidence.Rank{Rank: rank, PID: 100 + rank}
		for i := range 17 { // so many that nobody compresses them in vain
			p := evidence.Process{PID: 100 + rank + 1000*i, State: "S"}
			for k := range 12 {
				p.Threads = append(p.Threads, evidence.Thread{TID: p.PID + 11 - k, Kernel: []string{fmt.Sprint(rank * k * 7)}})
				p.Stacks = append(p.Stacks, evidence.Stack{Frames: frames(20, fmt.Sprint(rank, i, k))})
			}
			r.Processes = append(r.Processes, p)
		}
		n.Ranks = append(n.Ranks, r)
	}
	for _, most := range []int{seenOfNode, 32 << 10, leastSeen} {
		text, err := packSeen(&n, most)
		if err != nil || len(text) > most {
			t.Fatalf("%d of %d bytes: %v", len(text), most, err)
		}
		got, err := unpackSeen(text, 20)
		if err != nil || len(got.Ranks) == 0 || len(got.Notes) != 1 || got.Node != `a\x1b[2J` {
			t.Fatalf("%v %+v", err, got)
		}
		for _, r := range got.Ranks {
			main := r.Main()
			if r.Rank >= 20 || r.Node != got.Node || main.Threads[0].TID != main.PID || len(main.Stacks) == 0 ||
				main.Stacks[0].Frames[len(main.Stacks[0].Frames)-1].Line != 19 {
				t.Fatalf("of %d bytes: %+v", most, r)
			}
		}
		if most > leastSeen && len(got.Ranks) != 20 {
			t.Errorf("%d ranks in %d bytes", len(got.Ranks), most)
		}
	}
	bomb, err := packSeen(&evidence.Node{Notes: []string{strings.Repeat("0", plainTimes*seenOfNode)}}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := packSeen(&evidence.Node{Ranks: []evidence.Rank{{Rank: 1}, {Rank: 1}, {Rank: -1}, {Rank: 2}}}, leastSeen)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"nothing": nil, "no gzip": []byte("{}"), "cut": twice[:len(twice)-9], "a bomb": bomb} {
		if got, err := unpackSeen(text, 8); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got, err := unpackSeen(twice, 2); err != nil || len(got.Ranks) != 1 || got.Ranks[0].Rank != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestHangOfNodes: workers of two nodes wait, one is silent for other reasons than the rest, and all start again. While
// a worker of one node writes, nobody hangs.
func TestHangOfNodes(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
test $RANK = 3 && for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done
test $RANK = 2 && { echo hangs >> $ALL/last; kill -STOP $$; }
exec sleep 100`, func(_ int, n *testNode) {
		n.Restart.MaxRestarts = 1
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Action: job.HangRestart, Stacks: job.StacksOff}
	})
	c.ends(0, 0)
	c.lines(8)
	c.nodes[0].wantLog(t, `"message":"the workers hang"`, `"reason":"rank 2 on node node-1 is stopped by a signal`, `"ranks":[2]`)
	c.nodes[1].wantLog(t, "no worker has shown a sign of life for ") // 2 s, or more on a busy machine
	kept, _ := filepath.Glob(c.nodes[0].path("logs/*/hangs/*.json"))
	if len(kept) != 1 {
		t.Fatalf("%q", kept)
	}
	var whole control.Looked
	text, err := os.ReadFile(kept[0])
	if err != nil || json.Unmarshal(text, &whole) != nil || len(whole.Nodes) != 2 || len(whole.Missing) > 0 ||
		len(whole.Nodes[1].Ranks) != 2 || whole.Nodes[1].Ranks[0].Rank != 2 || whole.Nodes[1].Ranks[0].Silent < 4 ||
		whole.Nodes[1].Ranks[1].Silent < 2 {
		t.Errorf("%v %s", err, text)
	}
	if elsewhere, _ := filepath.Glob(c.nodes[1].path("logs/*/hangs/*")); len(elsewhere) > 0 {
		t.Errorf("%q", elsewhere)
	}
}

// Where agents of torchrun take part it is said that nobody looks.
func TestNoHangsWithOtherAgents(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	a := testAgentIn(rendezvous.Round{GroupRank: 0, GroupWorldSize: 2, Exchange: boardOf{}}, &log)
	hangs, stop := a.watchLife(t.Context())
	stop()
	if hangs != nil || !strings.Contains(log.String(), "--hang-timeout does nothing in this round") ||
		!strings.Contains(log.String(), "muster as the backend of the rendezvous keeps them out") {
		t.Error(log.String())
	}
}

// testAgentIn is an agent that has met the others, and looks for hangs.
func testAgentIn(r rendezvous.Round, log io.Writer) *Agent {
	p := plan.Plan{Job: job.Job{Hang: job.HangRules{Timeout: time.Minute}}}
	return &Agent{Plan: &p, Log: zerolog.New(log), meeting: &meeting{Round: r}}
}

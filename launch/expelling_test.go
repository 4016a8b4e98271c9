package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/evidence"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// A crash loop all failures of which come from one node ends with that node, where the others can do without it. It
// leaves also where another verdict ends the round in which it is to.
func TestCrashLoopOfOneNode(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 3, see+`test $WORLD_SIZE = 2 && exit 0
test $RANK = 1 || exec sleep 100
exit 7`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.OnNodeFault = 1, time.Second, `echo "$MUSTER_NODE $MUSTER_VERDICT $MUSTER_REASON" >> $PWD/told`
		n.Restart.MaxRestarts, n.Restart.CrashLoop, n.Restart.Delay = 9, 1, time.Millisecond
	})
	c.said(2, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "ScaleUp", Message: "a node has come", Rank: -1})
	c.ends(0, errhint.Faulty, 0)
	doc := readStatus(t, c.nodes[1].path("status.json"))
	if doc.Reason != reasonFaulty ||
		!strings.Contains(doc.Message, "node node-1 has to leave: the last 2 failures, which were in a crash loop") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
	if told, _ := os.ReadFile(c.nodes[0].path("told")); !strings.HasPrefix(string(told), "node-1 faulty the last 2 failures") {
		t.Errorf("the command was told %q", told)
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.WorldSize != 2 || doc.RestartCount != 2 {
		t.Errorf("%+v", doc)
	}
}

// --on-hang exclude has the node leave whose worker is stopped by a signal, and the others start again without it.
func TestHungNodeLeaves(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	c := startAgents(t, 3, see+`test $WORLD_SIZE = 2 && exit 0
test $RANK = 2 && kill -STOP $$
exec sleep 100`, func(_ int, n *testNode) {
		n.Procs, n.Grace = 1, time.Second
		n.Restart.MaxRestarts = 1
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Exclude: true, Action: job.HangDump}
	})
	c.ends(0, 0, errhint.Faulty)
	doc := readStatus(t, c.nodes[2].path("status.json"))
	if doc.Reason != reasonFaulty || !strings.Contains(doc.Message, "rank 2 on node node-2 is stopped by a signal") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.WorldSize != 2 || doc.RestartCount != 1 {
		t.Errorf("%+v", doc)
	}
	if found, _ := filepath.Glob(c.nodes[0].path("logs/*/hangs/*.json")); len(found) != 1 {
		t.Errorf("the evidence is kept in %q", found)
	}
}

// A hang whose cause lies in no node, and one on a node that the others need, is answered by what follows in the list:
// here by nothing.
func TestHungNodeStays(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $RANK = 1 && kill -STOP $$
while ! test -e $ALL/go; do sleep 0.2; done`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.MinNodes = 1, time.Second, 2
		n.Restart.MaxRestarts = 1
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Exclude: true, Action: job.HangFail}
	})
	for _, r := range c.ends(errhint.Deadline, errhint.Deadline) {
		if !strings.Contains(r.Report, "is stopped by a signal") {
			t.Errorf("the report does not say why: %s", r.Report)
		}
	}
	c.nodes[0].wantLog(t, "the node is not excluded: too few nodes would be left", `"node":"node-1"`)
}

// The site is asked before a node takes part. One that is not fit leaves; an answer that cannot be used changes nothing.
func TestSiteHealth(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, c := range map[string]struct {
		health job.HealthRules
		status int
		says   string
	}{
		"not fit": {
			job.HealthRules{Command: `echo checked; echo "GPU 2 of $MUSTER_NODE is gone"; exit 255`},
			errhint.Faulty,
			"its health command ended with status 255: GPU 2 of node-0 is gone",
		},
		"not to be run": {job.HealthRules{Command: "muster_no_such_command"}, 0, "has not said whether this node is fit"},
		"killed":        {job.HealthRules{Command: "kill -9 $$"}, 0, "has not said whether this node is fit"},
		"killed in a shell": {
			job.HealthRules{Command: `sh -c 'kill -9 $$'; exit $?`},
			0,
			"ended with status 137",
		},
		"no service": {job.HealthRules{Socket: "/nonexistent/socket"}, 0, "cannot ask the health service at /nonexistent/socket"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAgents(t, 1, see, func(_ int, n *testNode) { n.Procs, n.Health = 1, c.health })
			r := a.ends(c.status)
			if said := r[0].Report + a.nodes[0].log.String(); !strings.Contains(said, c.says) {
				t.Errorf("it does not say %q: %s", c.says, said)
			}
		})
	}
}

// Of what was seen of a hang it follows which node has to leave, if any.
func TestHungNode(t *testing.T) {
	space := memstore.NewSpace()
	defer space.Close()
	a := &Agent{Plan: &plan.Plan{}, Log: zerolog.Nop(), meeting: &meeting{Round: rendezvous.Round{
		GroupWorldSize: 3, Exchange: &testHandler{Store: space.Client()},
	}}}
	rank := func(n int, state, wchan string, kernel ...string) evidence.Rank {
		return evidence.Rank{Rank: n, PID: n, Processes: []evidence.Process{{
			PID: n, State: state, Threads: []evidence.Thread{{TID: n, State: state, Wchan: wchan, Kernel: kernel}},
		}}}
	}
	looked := func(ranks ...evidence.Rank) (l control.Looked) {
		for i, r := range ranks {
			l.Nodes = append(l.Nodes, evidence.Node{Node: fmt.Sprintf("node-%d", i), GroupRank: i, Ranks: []evidence.Rank{r}})
		}
		return l
	}
	waits := rank(0, "S", "")
	stopped, blocked := rank(1, "T", ""), rank(1, "D", "folio_wait_bit_common", "folio_wait_bit_common", "ext4_read")
	missing := looked(waits, blocked)
	missing.Missing = []string{"node-2"}
	for name, c := range map[string]struct {
		kind    diagnose.Kind
		victims []int
		seen    control.Looked
		leaves  bool
	}{
		"stopped":                          {diagnose.Stopped, []int{0}, looked(waits, stopped), true},
		"stopped, nobody is seen to wait":  {diagnose.Stopped, nil, looked(waits, stopped), true},
		"blocked":                          {diagnose.Blocked, []int{0}, looked(waits, blocked), true},
		"blocked, nobody is seen to wait":  {diagnose.Blocked, nil, looked(waits, blocked), false},
		"another node cannot be looked at": {diagnose.Blocked, []int{0}, missing, false},
		"by NFS":                           {diagnose.Blocked, []int{0}, looked(waits, rank(1, "D", "rpc_wait_bit_killable")), false},
		"by Lustre": {
			diagnose.Blocked,
			[]int{0},
			looked(waits, rank(1, "D", "folio_wait_bit_common", "folio_wait_bit_common", "ll_file_read_iter")),
			false,
		},
		"asleep": {diagnose.Sleeps, []int{0}, looked(waits, stopped), false},
	} {
		e := a.hungNode(diagnose.Verdict{Kind: c.kind, Culprits: []int{1}, Victims: c.victims}, c.seen)
		if e.Any() != c.leaves || c.leaves && (e.Node != "node-1" || e.GroupRank != 1) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// One node leaves because of a hang, and no other does until the job has come further. Without a restart the job goes on.
func TestOneHungNodeLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		loop     crashLoop
		restarts int
		leaves   bool
	}{
		"the first":          {crashLoop{judged: true}, 1, true},
		"a second":           {crashLoop{judged: true, expelled: true}, 1, false},
		"no restart is left": {crashLoop{judged: true}, 0, false},
	} {
		p := policy.New(job.RestartRules{Policy: job.RestartOnFailure, MaxRestarts: c.restarts, BackoffLimit: -1}, 1,
			func() float64 { return 0 })
		p.Step(policy.Event{Kind: policy.GroupStarted, At: time.Now(), World: 3})
		a := &Agent{
			Plan: &plan.Plan{Job: job.Job{Hang: job.HangRules{Exclude: true, Action: job.HangDump}}}, Log: zerolog.Nop(),
			meeting: &meeting{}, policy: p, loop: c.loop,
		}
		d := a.stepHang(t.Context(), hang{exclude: rendezvous.Expulsion{GroupRank: 1, Node: "node-1", Status: errhint.Faulty}}, false)
		if d.Exclude.Any() != c.leaves || (d.Verdict == policy.Restart) != c.leaves || (d.Verdict == policy.CarryOn) == c.leaves {
			t.Errorf("%s: %+v", name, d)
		}
		if a.loop.judged != c.leaves {
			t.Errorf("%s: whether the job comes further is known too early", name)
		}
	}
}

// What a round has to do about a node it takes over from the one before.
func TestExpulsionIsTakenOver(t *testing.T) {
	e := rendezvous.Expulsion{GroupRank: 1, Node: "node-1", Status: errhint.Faulty}
	restart := rendezvous.Verdict{Kind: rendezvous.Restart, Exclude: e}
	lost := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost"}
	for name, c := range map[string]struct {
		before rendezvous.Expulsion
		said   []rendezvous.Verdict
		want   bool
	}{
		"nothing":                   {rendezvous.Expulsion{}, []rendezvous.Verdict{lost}, false},
		"decided":                   {rendezvous.Expulsion{}, []rendezvous.Verdict{restart}, true},
		"decided, and a node lost":  {rendezvous.Expulsion{}, []rendezvous.Verdict{restart, lost}, true},
		"another verdict was first": {e, []rendezvous.Verdict{lost}, true},
		"no verdict":                {e, nil, true},
		"it has left": {
			e, []rendezvous.Verdict{{Kind: rendezvous.Reassemble, Node: "node-1", Status: errhint.Faulty}, lost}, false,
		},
		"it was waited for in vain": {e, []rendezvous.Verdict{{Kind: rendezvous.Reassemble, Reason: string(reasonUnfit)}}, false},
	} {
		last := &meeting{Round: rendezvous.Round{GroupRank: 1, GroupWorldSize: 3}, expel: c.before, expelMe: c.before.Any(), known: c.said}
		var m meeting
		m.expels(last)
		if (m.expel == e) != c.want || m.expel.Any() != c.want || m.expelMe != c.want {
			t.Errorf("%s: %+v, this node %v", name, m.expel, m.expelMe)
		}
	}
}

// A node that had to leave and did not come back is told by names: another one may have its place, or have gone, too.
func TestExpelledNodeHasGone(t *testing.T) {
	for name, c := range map[string]struct {
		others []string // of the round: "" has not said its name yet
		from   int
		want   bool
	}{
		"it is there":                        {[]string{"node-1", "node-2"}, 3, false},
		"another one has gone":               {[]string{"node-1"}, 3, false},
		"a spare has its place":              {[]string{"spare-0", "node-2"}, 3, true},
		"it has gone":                        {[]string{"node-2"}, 3, true},
		"a name is missing, and none":        {[]string{"", "node-2"}, 3, false},
		"a name is missing, and one is gone": {[]string{""}, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			space := memstore.NewSpace()
			defer space.Close()
			b := space.Client()
			for i, node := range c.others {
				text, err := json.Marshal(heardStatus{Status: report.Status{Tasks: []report.Task{{Node: node}}}})
				if err == nil && node != "" {
					err = b.Set(t.Context(), statusKey+strconv.Itoa(i+1), text)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			nodes := len(c.others) + 1
			a := &Agent{
				Plan: &plan.Plan{Hostname: "node-0"}, Steering: &Steering{board: roundBoard{b, 0, nodes}},
				meeting: &meeting{
					Round: rendezvous.Round{GroupWorldSize: nodes}, expel: rendezvous.Expulsion{Node: "node-1", Status: 80},
					expelFrom: c.from,
				},
			}
			if got := a.hasGone(t.Context()); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// A node that is found unfit in a round which another verdict ends is asked for again in the next. The word that it is fit
// counts for 30 s.
func TestUnfitNodeAsksAgain(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	testutil.SoakOnly(t)
	c := startAgents(t, 2, see+`test $WORLD_SIZE = 2 || exit 0
test $RANK = 0 || exec sleep 100
sleep 32; exit 7`, func(i int, n *testNode) {
		n.Procs, n.Grace, n.Restart.MaxRestarts, n.Restart.Delay = 1, time.Second, 1, time.Millisecond
		if n.Health.Command = "exit 0"; i > 0 {
			n.Health.Command, n.Deaf = `test -e asked || { touch asked; exit 0; }; exit 3`, 1
		}
	})
	c.said(1, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "ScaleUp", Message: "a node has come", Rank: -1})
	c.ends(0, errhint.Faulty)
	lines := c.lines(3)
	if count(lines, "0 of 1 try 1") != 1 {
		t.Errorf("the other node did not go on: %q", lines)
	}
	if count(lines, "1 of 2 try 1") != 0 {
		t.Errorf("the node has started workers although it is not fit: %q", lines)
	}
}

package launch

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/launch/report"
	"muster/launch/straggler"
)

// slowTraining is a program whose ranks compute, and wait for each other in each step, until one is told to fail.
const slowTraining = `
import muster, os, socket, sys, time
rank, world, all = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["ALL"]
if world < 4:
    sys.exit(0)
work = 0.060 if rank == 2 else 0.001
if rank == 0:
    server = socket.socket(socket.AF_UNIX)
    server.bind(all + "/new"); server.listen(8); os.rename(all + "/new", all + "/meet")
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    peers = [socket.socket(socket.AF_UNIX)]
    while peers[0].connect_ex(all + "/meet"):
        time.sleep(0.05)
for step in range(1, 10**6):
    end = time.thread_time() + work
    while time.thread_time() < end: pass
    if rank == 0:
        for p in peers: p.recv(1) or sys.exit(7)
        if os.path.exists(all + "/go"): sys.exit(7)
        for p in peers: p.send(b"x")
    else:
        peers[0].send(b"x"); peers[0].recv(1) or time.sleep(100)
    muster.progress.step(step)
`

// A rank that holds up the others is named, and with --exclude-straggler its node leaves with the next restart.
func TestSlowNodeLeaves(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	packages := filepath.Join(t.TempDir(), "python")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	c := startAgents(t, 4, `exec python3 -c "$TRAINING"`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.Restart.MaxRestarts, n.Restart.Delay = 1, time.Second, 3, time.Millisecond
		n.SlowEvery, n.ExcludeStraggler, n.MinNodes = 300*time.Millisecond, true, 3
		n.Environ = []string{"PYTHONPATH=" + packages, "TRAINING=" + slowTraining}
	})
	log := &c.nodes[0].log
	testutil.Eventually(t, time.Minute, "the slow rank is named", func() bool {
		return strings.Contains(log.String(), `"rank":2,"node":"node-2","cause":"`)
	})
	writeFile(t, filepath.Join(c.dir, "go"), "")
	c.ends(0, 0, errhint.Straggler, 0)
	c.nodes[0].wantLog(t, "a rank holds up the training", `"rank":2,"node":"node-2","cause":"`)
	doc := readStatus(t, c.nodes[2].path("status.json"))
	// On a busy machine its steps may seem to be longer than those of the others: then it is said to be slow instead.
	const leaves = "node node-2 has to leave: rank 2 on node node-2 "
	if doc.Reason != reasonStraggler ||
		!strings.Contains(doc.Message, leaves+"holds up the others: ") && !strings.Contains(doc.Message, leaves+"is slow: ") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.WorldSize != 3 || doc.RestartCount != 1 {
		t.Errorf("%+v", doc)
	}
}

// Of a worker's threads the busiest counts, in each interval, and what it did before the first look does not.
func TestBusiestThread(t *testing.T) {
	var track slowTrack
	ms := time.Millisecond
	track.run([]proc.Thread{{TID: 1, Ran: 900 * ms}, {TID: 2, Ran: 100 * ms}})
	track.run([]proc.Thread{{TID: 1, Ran: 950 * ms}, {TID: 2, Ran: 180 * ms, Queued: 10 * ms}})
	track.run([]proc.Thread{{TID: 1, Ran: 20 * ms}, {TID: 2, Ran: 190 * ms, Queued: 10 * ms}, {TID: 3, Ran: 30 * ms, Disk: 5 * ms}})
	if s := track.sums; s.Busy != 125*ms || s.Queued != 10*ms || s.Disk != 5*ms {
		t.Errorf("%+v", s)
	}
}

// The status of a rank says how slow it is.
func TestTellSlow(t *testing.T) {
	v := straggler.Verdict{
		Ratios: map[int]float64{1: 1.01, 2: 1.5},
		Slow:   []straggler.Finding{{Rank: 2, Node: "n", Ratio: 1.5, Own: 0.3, Median: 0.2, Step: 0.31, Detail: "why"}},
	}
	var told []string
	for rank := range 3 {
		r := report.Rank{Rank: rank}
		if tellSlow(&r, &v); r.Slowness != nil {
			told = append(told, fmt.Sprintf("%d %v %s", rank, *r.Slowness, r.Slow))
		}
	}
	want := "1 1.01 |2 1.5 rank 2 on node n holds up the others: its own part of a step of 0.31 s takes " +
		"0.30 s, 1.5 times the median of all ranks (0.20 s): why"
	if got := strings.Join(told, "|"); got != want {
		t.Errorf("told is %q, want %q", got, want)
	}
}

// A rank with half as much work again is named on a machine with more ranks than cores, too, where all of them wait for
// cores. What else runs on a busy machine may hold up others: it is a part of make soak.
func TestSlowRankOfCrowd(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	testutil.SoakOnly(t)
	packages := filepath.Join(t.TempDir(), "python")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	const crowd = "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
	training := crowd + strings.Replace(slowTraining, "work = 0.060 if rank == 2 else 0.001", "work = 0.030 if rank == 2 else 0.020", 1)
	c := startAgents(t, 1, `exec python3 -c "$TRAINING"`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.SlowEvery = 6, time.Second, time.Second
		n.Environ = []string{"PYTHONPATH=" + packages, "TRAINING=" + training}
	})
	log := &c.nodes[0].log
	testutil.Eventually(t, 2*time.Minute, "the slow rank is named", func() bool {
		return strings.Contains(log.String(), `"message":"a rank holds up the training"`)
	})
	writeFile(t, filepath.Join(c.dir, "go"), "")
	c.ends(7)
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "a rank holds up the training") && !strings.Contains(line, `"rank":2,`) {
			t.Errorf("a healthy rank is named: %s", line)
		}
	}
}

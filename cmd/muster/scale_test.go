package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// untilNodes waits until workers run on so many nodes, one on each, and returns the number of the round.
func untilNodes(t *testing.T, runtimeDir string, n int) int {
	t.Helper()
	generation := 0
	testutil.Eventually(t, time.Minute, fmt.Sprintf("workers run on %d nodes", n), func() bool {
		a, _ := statusOf(t, runtimeDir)
		running := 0
		for _, r := range a.Ranks {
			if r.Phase == report.PhaseRunning {
				running++
			}
		}
		generation = a.Generation
		return a.Phase == report.PhaseRunning && a.Nodes == n && a.WorldSize == n && running == n
	})
	return generation
}

// TestScale has an elastic job of three nodes go on with fewer, also while it is paused, and with more again.
func TestScale(t *testing.T) {
	t.Parallel()
	m := newMeet(t, untilStopped, "--nnodes=1:3", "-n", "1", "--max-restarts=9", "--run-id=elastic",
		"--rdzv=muster://127.0.0.1:"+freePort(t), "--last-call=2s")
	m.native = true
	node := func(i int) *testJob { return m.start(i, fmt.Sprintf("--local-addr=127.0.0.%d", i+1)) }
	agents := []*testJob{node(0), node(1), node(2)}
	untilNodes(t, agents[0].runtimeDir, 3)
	steering(t, agents[1].runtimeDir, "scale", "4").expect(t, 2, "cannot scale the job to 4 nodes: --nnodes allows 1 to 3")
	steering(t, agents[1].runtimeDir, "scale", "0").expect(t, 2, `"0" is no number of nodes`)
	steering(t, agents[1].runtimeDir, "scale").expect(t, 2, "needs a number of nodes")
	steering(t, agents[1].runtimeDir, "scale", "3").expect(t, 0, "the job has 3 nodes")
	asked := steering(t, agents[0].runtimeDir, "scale", "2")
	asked.expect(t, 0, "the job goes on with 2 nodes: of the others (1, by the highest group ranks) each leaves with exit status 0")
	left, stay := -1, []*testJob{}
	testutil.Eventually(t, time.Minute, "one has left", func() bool {
		for i, j := range agents {
			if strings.Contains(forPeople(j.err.String()), "this node leaves the job") {
				left = i
			}
		}
		return left >= 0
	})
	m.ends(agents[left], 0)
	for i, j := range agents {
		if i != left {
			stay = append(stay, j)
		}
	}
	untilNodes(t, stay[0].runtimeDir, 2)
	// Another one has no place, until one is wanted.
	third := node(left)
	untilPhase(t, third.runtimeDir, report.PhasePending)
	time.Sleep(3 * time.Second) // longer than the last call
	if a, _ := statusOf(t, third.runtimeDir); a.Phase != report.PhasePending {
		t.Errorf("it takes part: %+v", a.Status)
	}
	steering(t, stay[1].runtimeDir, "scale", "3").expect(t, 0, "takes up to 3", "on a new machine call muster run --nnodes=1:3")
	untilNodes(t, third.runtimeDir, 3)
	steering(t, third.runtimeDir, "events").expect(t, 0)
	steering(t, stay[1].runtimeDir, "events").expect(t, 0, "scale was asked for by user")

	steering(t, stay[0].runtimeDir, "pause").expect(t, 0)
	for _, j := range append(stay, third) {
		untilPhase(t, j.runtimeDir, report.PhasePaused)
	}
	steering(t, stay[0].runtimeDir, "scale", "2").expect(t, 0, "the job goes on with 2 nodes")
	var last []*testJob
	testutil.Eventually(t, time.Minute, "another one has left", func() bool {
		last = nil
		for _, j := range append(stay, third) {
			if !strings.Contains(forPeople(j.err.String()), "this node leaves the job") {
				last = append(last, j)
			}
		}
		return len(last) == 2
	})
	testutil.Eventually(t, time.Minute, "the others are paused", func() bool {
		a, _ := statusOf(t, last[0].runtimeDir)
		return a.Phase == report.PhasePaused && a.Nodes == 2
	})
	steering(t, last[0].runtimeDir, "resume").expect(t, 0)
	untilNodes(t, last[1].runtimeDir, 2)
	steering(t, last[0].runtimeDir, "stop").expect(t, 0)
	for _, j := range last {
		m.ends(j, 143)
	}
}

// TestScaleFixed: a job of a fixed size is not scaled, and one of one node loses none.
func TestScaleFixed(t *testing.T) {
	t.Parallel()
	j := start(t, nil, "run", "-n", "1", "--", "sh", "-c", untilStopped)
	untilRanks(t, j.runtimeDir, 1)
	steering(t, j.runtimeDir, "scale", "2").expect(t, 2, "it has a fixed number of nodes, 1", "--nnodes MIN:MAX")
	steering(t, j.runtimeDir, "kill-node", "0").expect(t, 2, "the job has one node")
	steering(t, j.runtimeDir, "stop").expect(t, 0)
	j.wait().expect(t, 143)
}

// TestScaleLauncher scales jobs down and up, and has a node of each be lost, by the muster that has started all nodes.
func TestScaleLauncher(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		again string // what is said of more nodes
	}{
		"hosts":     {[]string{"--hosts", "localhost,127.0.0.1,127.0.0.2"}, "it is started again on "},
		"simulated": {[]string{"--simulate-nodes", "3"}, "started: node-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "--nnodes", "1:3", "-n", "1", "--max-restarts", "9"}, c.args...)
			j := start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")},
				append(args, "--", "sh", "-c", untilStopped)...)
			untilNodes(t, j.runtimeDir, 3)
			steering(t, j.runtimeDir, "scale", "2").expect(t, 0, "the job goes on with 2 nodes: of the others (1")
			untilNodes(t, j.runtimeDir, 2)
			time.Sleep(2 * time.Second)
			untilNodes(t, j.runtimeDir, 2) // nobody takes this for the end of the job
			steering(t, j.runtimeDir, "scale", "3").expect(t, 0, c.again)
			untilNodes(t, j.runtimeDir, 3)
			steering(t, j.runtimeDir, "kill-node", "7").expect(t, 2, `the job has no node "7"`, "0 to 2")
			before := untilNodes(t, j.runtimeDir, 3)
			steering(t, j.runtimeDir, "kill-node", "2").expect(t, 0, "(group rank 2) kills itself")
			testutil.Eventually(t, time.Minute, "the others go on", func() bool {
				a, _ := statusOf(t, j.runtimeDir)
				return a.Phase == report.PhaseRunning && a.Generation > before
			})
			steering(t, j.runtimeDir, "stop").expect(t, 0, "is being stopped")
			j.wait().expect(t, 143)
			j.nothingLeft(j.runtimeDir)
		})
	}
}

// TestKillNode has two of three agents be lost, one at its own word and one at another's; new ones take their places.
func TestKillNode(t *testing.T) {
	t.Parallel()
	flags, _ := staticFlags(t, 3)
	events := filepath.Join(t.TempDir(), "events.jsonl") // of all nodes
	m := newMeet(t, untilStopped, append(flags, "--nproc-per-node=1", "--max-restarts=9", "--events="+events)...)
	m.native = true
	node := func(rank int) *testJob {
		return m.start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*testJob{node(0), node(1), node(2)}
	untilNodes(t, agents[0].runtimeDir, 3)
	a, _ := statusOf(t, agents[0].runtimeDir)
	steering(t, agents[0].runtimeDir, "kill-node", a.Tasks[0].Node).expect(t, 2, "3 nodes are called", "[0 1 2]")
	for rank, by := range map[int]int{1: 1, 2: 0} {
		steering(t, agents[by].runtimeDir, "kill-node", fmt.Sprint(rank)).expect(t, 0, "kills itself")
		m.ends(agents[rank], 137, "this node is lost on purpose")
		agents[rank] = node(rank)
		untilNodes(t, agents[rank].runtimeDir, 3)
	}
	steering(t, agents[0].runtimeDir, "events").expect(t, 0, "the loss of a node was asked for by user")
	steering(t, agents[0].runtimeDir, "stop").expect(t, 0)
	for _, j := range agents {
		m.ends(j, 143)
	}
	// Each loss is told by the two that are left, and each return by them and by the node itself.
	if types := eventTypes(t, events); types[control.NodeLost] != 4 || types[control.NodeJoined] != 6 {
		t.Errorf("%v", types)
	}
}

// TestHostsScale has a job on two hosts, which are reached by ssh, go on with one and with both again.
func TestHostsScale(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2, func(_ string, cfg *testutil.SSHDConfig) { cfg.Env = append(cfg.Env, cfg.Host.Environ()...) })
	r := j.start("run", "--hosts", j.names(), "--nnodes", "1:2", "--last-call", "2s", "--max-restarts", "9", "--", "sh", "-c", untilStopped)
	until := func(nodes int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("the job has %d nodes", nodes), func() bool {
			a := worldOn(t, j.launcher)
			return a.Phase == report.PhaseRunning && a.Nodes == nodes && a.WorldSize == nodes
		})
	}
	until(2)
	musterOn(t, j.launcher, "", "scale", "1").expect(t, 0, "the job goes on with 1 node")
	until(1)
	musterOn(t, j.launcher, "", "scale", "2").expect(t, 0, "it is started again on ")
	until(2)
	untilRanksOn(t, j.launcher, 2)
	musterOn(t, j.launcher, "", "stop").expect(t, 0)
	j.ends(r, 143)
	j.clean(time.Minute)
}

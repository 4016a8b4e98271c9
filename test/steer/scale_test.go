package steer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/report"
	"muster/test/drive"
)

// TestScale has an elastic job of three nodes go on with fewer, also while it is paused, and with more again.
func TestScale(t *testing.T) {
	t.Parallel()
	m := drive.NewMeet(t, drive.UntilStopped, "--nnodes=1:3", "-n", "1", "--max-restarts=9", "--run-id=elastic",
		"--rdzv=muster://127.0.0.1:"+drive.FreePort(t), "--last-call=2s")
	m.Native = true
	node := func(i int) *drive.Job { return m.Start(i, fmt.Sprintf("--local-addr=127.0.0.%d", i+1)) }
	agents := []*drive.Job{node(0), node(1), node(2)}
	drive.UntilNodes(t, agents[0].RuntimeDir, 3)
	drive.Beside(t, agents[1].RuntimeDir, "scale", "4").Expect(t, 2, "cannot scale the job to 4 nodes: it was started with --nnodes 1:3",
		"give a number from 1 to 3; or start the job again with another --nnodes MIN:MAX")
	drive.Beside(t, agents[1].RuntimeDir, "scale", "0").Expect(t, 2, `"0" is no number of nodes`)
	drive.Beside(t, agents[1].RuntimeDir, "scale").Expect(t, 2, "needs a number of nodes")
	drive.Beside(t, agents[1].RuntimeDir, "scale", "3").Expect(t, 0, "the job has 3 nodes")
	asked := drive.Beside(t, agents[0].RuntimeDir, "scale", "2")
	asked.Expect(t, 0, "the job goes on with 2 nodes: of the others (1, by the highest group ranks) each leaves with exit status 0")
	left, stay := -1, []*drive.Job{}
	testutil.Eventually(t, time.Minute, "one has left", func() bool {
		for i, j := range agents {
			if strings.Contains(drive.ForPeople(j.Err.String()), "this node leaves the job") {
				left = i
			}
		}
		return left >= 0
	})
	m.Ends(agents[left], 0)
	for i, j := range agents {
		if i != left {
			stay = append(stay, j)
		}
	}
	drive.UntilNodes(t, stay[0].RuntimeDir, 2)
	// Another one has no place, until one is wanted.
	third := node(left)
	drive.UntilPhase(t, third.RuntimeDir, report.PhasePending)
	time.Sleep(3 * time.Second) // longer than the last call
	if a, _ := drive.StatusOf(t, third.RuntimeDir); a.Phase != report.PhasePending {
		t.Errorf("it takes part: %+v", a.Status)
	}
	drive.Beside(t, stay[1].RuntimeDir, "scale", "3").Expect(t, 0, "takes up to 3", "on a new machine call muster run --nnodes=1:3")
	drive.UntilNodes(t, third.RuntimeDir, 3)
	drive.Beside(t, third.RuntimeDir, "events").Expect(t, 0)
	drive.Beside(t, stay[1].RuntimeDir, "events").Expect(t, 0, "scale to 3 nodes was asked for by user")

	drive.Beside(t, stay[0].RuntimeDir, "pause").Expect(t, 0)
	for _, j := range append(stay, third) {
		drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	}
	drive.Beside(t, stay[0].RuntimeDir, "scale", "2").Expect(t, 0, "the job goes on with 2 nodes")
	var last []*drive.Job
	testutil.Eventually(t, time.Minute, "another one has left", func() bool {
		last = nil
		for _, j := range append(stay, third) {
			if !strings.Contains(drive.ForPeople(j.Err.String()), "this node leaves the job") {
				last = append(last, j)
			}
		}
		return len(last) == 2
	})
	testutil.Eventually(t, time.Minute, "the others are paused", func() bool {
		a, _ := drive.StatusOf(t, last[0].RuntimeDir)
		return a.Phase == report.PhasePaused && a.Nodes == 2
	})
	drive.Beside(t, last[0].RuntimeDir, "resume").Expect(t, 0)
	drive.UntilNodes(t, last[1].RuntimeDir, 2)
	drive.Beside(t, last[0].RuntimeDir, "stop").Expect(t, 0)
	for _, j := range last {
		m.Ends(j, 143)
	}
}

// TestScaleFixed: a job of a fixed size is not scaled, and one of one node loses none.
func TestScaleFixed(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "1", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 1)
	drive.Beside(t, j.RuntimeDir, "scale", "2").Expect(t, 2, "it has a fixed number of nodes, 1", "--nnodes MIN:MAX")
	drive.Beside(t, j.RuntimeDir, "kill-node", "0").Expect(t, 2, "the job has one node")
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End().Expect(t, 143)
}

// TestLossEndsJob: who has a job of a fixed size lose a node is told that it ends, and it does. Who asks for something
// meanwhile hears that, too.
func TestLossEndsJob(t *testing.T) {
	t.Parallel()
	at := t.TempDir() // a worker ends once somebody was told that the job is ending
	j := drive.Start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml"), "AT=" + at},
		"run", "--run-id", "lossy", "--simulate-nodes", "2", "-n", "1", "--", "sh", "-c",
		`trap 'until [ -e $AT/told ]; do sleep 0.1; done; exit 0' TERM; while :; do sleep 0.1; done`)
	drive.UntilNodes(t, j.RuntimeDir, 2)
	drive.Beside(t, j.RuntimeDir, "kill-node", "nodd-1").Expect(t, 2, "they are called node-")
	drive.Beside(t, j.RuntimeDir, "kill-node", "node-1").Expect(t, 0,
		"a round needs 2 nodes: a node that waits or comes takes its place, else the job ends with status 75")
	// Before it is known that too few are left, a restart would begin, and its workers would be gone when the job ends.
	asked := false
	testutil.Eventually(t, time.Minute, "the job has ended", func() bool {
		got := drive.Beside(t, j.RuntimeDir, "status")
		if strings.Contains(got.Stdout, "NodesNotMet") && !asked {
			asked = true
			drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 75, "the job is ending: too few simulated nodes are left")
			if err := os.WriteFile(filepath.Join(at, "told"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text := got.Stdout + got.Stderr
		if strings.Contains(text, "no node answers now") || strings.Contains(text, "StopRequested") ||
			asked && strings.Contains(text, "Running") {
			t.Errorf("of a job that is ending it is said:\n%s", text)
		}
		return got.Status == 2 // there is no such job
	})
	if !asked {
		t.Error("nobody was told that the job is ending")
	}
	j.End().Expect(t, 75)
	drive.Beside(t, j.RuntimeDir, "status", "lossy").Expect(t, 0, "Failed, NodesNotMet", "too few simulated nodes")
}

// TestAllSimulatedNodesLost: a job whose nodes were killed one after the other says so, and that it may be tried again; with
// --exit-code-compat it ends as it would under torchrun.
func TestAllSimulatedNodesLost(t *testing.T) {
	for _, status := range []int{75, 1} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			env := append(drive.Apart(t.TempDir()), "AT="+t.TempDir(), "MUSTER_FAKE="+filepath.Join("..", "..", "examples", "cluster.yaml"))
			if status == 1 {
				env = append(env, "MUSTER_EXIT_CODE_COMPAT=true")
			}
			// The worker of node-0, which serves the store, kills its muster once that of node-1 is gone, and the launcher
			// has had time to see that.
			drive.Run(t, env, "run", "--run-id", "lost", "--simulate-nodes", "2", "--nnodes", "1:2", "-n", "1", "--", "sh", "-c",
				`if tr '\0' '\n' </proc/$PPID/environ | grep -q '=node-1$'; then
				echo $PPID >$AT/new; mv $AT/new $AT/1; kill -9 $PPID; sleep 60; fi
				until [ -e $AT/1 ]; do sleep 0.1; done
				while kill -0 $(cat $AT/1) 2>/dev/null; do sleep 0.1; done
				sleep 1; kill -9 $PPID; sleep 60`).Expect(t, status,
				"muster: error: no simulated node is left", "muster: hint: start the job again")
			drive.Run(t, env, "status", "lost").Expect(t, 0, "Failed, NodesNotMet", "no simulated node is left")
			drive.Run(t, env, "events", "lost").Expect(t, 0, "exit status "+strconv.Itoa(status)+": NodesNotMet")
		})
	}
}

// TestStopLosesNoNode: no node of a job that its launcher was asked to stop takes another one's end for a loss.
func TestStopLosesNoNode(t *testing.T) {
	for name, of := range map[string][]string{
		"hosts":     {"--hosts", "localhost,127.0.0.1,127.0.0.2,127.0.0.3"},
		"simulated": {"--simulate-nodes", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env := append(drive.Apart(dir), "MUSTER_FAKE="+filepath.Join("..", "..", "examples", "cluster.yaml"))
			args := append(append([]string{"run", "--run-id", "stopped"}, of...), "-n", "1", "--max-restarts", "9", "--")
			j := drive.Start(t, env, append(args, "sh", "-c", drive.UntilStopped)...)
			drive.UntilNodes(t, dir, 4)
			drive.Run(t, env, "stop").Expect(t, 0, "is being stopped")
			out := j.End()
			out.Expect(t, 143)
			told := 0
			for line := range strings.Lines(out.Stderr) { // all nodes say the same, which is one line then
				if !strings.Contains(line, `"message":"stopping the workers"`) {
					continue
				}
				if told++; !strings.Contains(line, "muster was asked to stop") {
					t.Errorf("why is told by some nodes alone: %s", line)
				}
			}
			if told == 0 && name == "simulated" { // agents on hosts leave that to their launcher
				t.Errorf("nobody says that workers are stopped:\n%s", out.Stderr)
			}
			got := drive.Run(t, env, "events", "stopped")
			got.Expect(t, 0, "stop was asked for by", "exit status 143: StopRequested")
			for _, no := range []string{"node lost", "NodeStopped", "Restarting"} {
				if strings.Contains(got.Stdout, no) {
					t.Errorf("%q is told of a job that was stopped:\n%s", no, got.Stdout)
				}
			}
		})
	}
}

// TestScaleLauncher scales jobs down and up, and has a node of each be lost, by the muster that has started all nodes.
func TestScaleLauncher(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		again string // what is said of more nodes
		lost  string // the node that is killed, by its group rank or its name
	}{
		"hosts":     {[]string{"--hosts", "localhost,127.0.0.1,127.0.0.2"}, "it is started again on ", "0"},
		"simulated": {[]string{"--simulate-nodes", "3"}, "started: node-", "node-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "--nnodes", "1:3", "-n", "1", "--max-restarts", "9"}, c.args...)
			j := drive.Start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")},
				append(args, "--", "sh", "-c", drive.UntilStopped)...)
			drive.UntilNodes(t, j.RuntimeDir, 3)
			drive.Beside(t, j.RuntimeDir, "scale", "2").Expect(t, 0, "the job goes on with 2 nodes: of the others (1")
			drive.UntilNodes(t, j.RuntimeDir, 2)
			time.Sleep(2 * time.Second)
			smaller := drive.UntilNodes(t, j.RuntimeDir, 2) // nobody takes this for the end of the job
			drive.Beside(t, j.RuntimeDir, "scale", "3").Expect(t, 0, c.again)
			if larger := drive.UntilNodes(t, j.RuntimeDir, 3); larger != smaller+1 {
				t.Errorf("round %d is that of 3 nodes, and round %d was that of 2", larger, smaller)
			}
			drive.Beside(t, j.RuntimeDir, "kill-node", "7").Expect(t, 2, `the job has no node "7"`, "0 to 2")
			before := drive.UntilRanks(t, j.RuntimeDir, 3)
			ranks := slices.DeleteFunc(before.Ranks, func(r report.Rank) bool { return r.Node != c.lost && strconv.Itoa(r.Rank) != c.lost })
			if len(ranks) != 1 {
				t.Fatalf("node %s has not one rank: %+v", c.lost, before.Ranks)
			}
			drive.Beside(t, j.RuntimeDir, "kill-node", c.lost).Expect(t, 0, "kills itself, as if its machine were lost")
			testutil.Eventually(t, time.Minute, "the others go on", func() bool {
				gone := map[int]bool{}
				for _, r := range ranks {
					gone[r.PID] = unix.Kill(r.PID, 0) != nil
				}
				a, _ := drive.StatusOf(t, j.RuntimeDir)
				for _, r := range a.Ranks {
					if gone[r.PID] && r.Phase == report.PhaseRunning {
						t.Errorf("round %d: rank %d is said to run, whose process %d is gone with its node", a.Generation, r.Rank, r.PID)
					}
				}
				if a.Phase == report.PhasePending {
					t.Errorf("the job is said to be %s: %+v", a.Phase, a.Status)
				}
				return a.Phase == report.PhaseRunning && a.Generation > before.Generation
			})
			drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "sh on "+wording.Node(ranks[0].Node)+" (died, ")
			drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0, "is being stopped")
			j.End().Expect(t, 143)
			j.NothingLeft(j.RuntimeDir)
		})
	}
}

// TestKillNode has two of three agents be lost, one at its own word and one at another's; new ones take their places.
func TestKillNode(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 3)
	events := filepath.Join(t.TempDir(), "events.jsonl") // of all nodes
	m := drive.NewMeet(t, drive.UntilStopped, append(flags, "--nproc-per-node=1", "--max-restarts=9", "--events="+events)...)
	m.Native = true
	node := func(rank int) *drive.Job {
		return m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*drive.Job{node(0), node(1), node(2)}
	drive.UntilNodes(t, agents[0].RuntimeDir, 3)
	a, _ := drive.StatusOf(t, agents[0].RuntimeDir)
	drive.Beside(t, agents[0].RuntimeDir, "kill-node", a.Tasks[0].Node).Expect(t, 2, "3 nodes are called", "[0 1 2]")
	for rank, by := range map[int]int{1: 1, 2: 0} {
		drive.Beside(t, agents[by].RuntimeDir, "kill-node", fmt.Sprint(rank)).Expect(t, 0, "kills itself")
		m.Ends(agents[rank], 137, "this node is lost on purpose")
		agents[rank] = node(rank)
		drive.UntilNodes(t, agents[rank].RuntimeDir, 3)
	}
	drive.Beside(t, agents[0].RuntimeDir, "events").Expect(t, 0, "the loss of node 2 was asked for by user",
		" is refused: rehearse the loss of ")
	drive.Beside(t, agents[0].RuntimeDir, "stop").Expect(t, 0)
	for _, j := range agents {
		m.Ends(j, 143)
	}
	// Each loss is told by the two that are left, and each return by them and by the node itself.
	if types := drive.EventTypes(t, events); types[control.NodeLost] != 4 || types[control.NodeJoined] != 6 {
		t.Errorf("%v", types)
	}
}

// TestHostsScale has a job on two hosts, which are reached by ssh, go on with one and with both again.
func TestHostsScale(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2, func(_ string, cfg *testutil.SSHDConfig) { cfg.Env = append(cfg.Env, cfg.Host.Environ()...) })
	r := j.Start("run", "--hosts", j.Names(), "--nnodes", "1:2", "--last-call", "2s", "--max-restarts", "9", "--",
		"sh", "-c", drive.UntilStopped)
	until := func(nodes int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("the job has %d nodes", nodes), func() bool {
			a := drive.StatusOn(t, j.Launcher)
			return a.Phase == report.PhaseRunning && a.Nodes == nodes && a.WorldSize == nodes
		})
	}
	until(2)
	drive.RunOn(t, j.Launcher, "", "scale", "1").Expect(t, 0, "the job goes on with 1 node")
	until(1)
	drive.RunOn(t, j.Launcher, "", "scale", "2").Expect(t, 0, "it is started again on ")
	until(2)
	drive.UntilRanksOn(t, j.Launcher, 2)
	drive.RunOn(t, j.Launcher, "", "stop").Expect(t, 0)
	j.Ends(r, 143)
	j.Clean(time.Minute)
}

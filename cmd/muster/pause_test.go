package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// untilPhase waits until a job stands in a phase, and no worker of it runs.
func untilPhase(t *testing.T, runtimeDir string, phase report.Phase, args ...string) control.Answer {
	t.Helper()
	var a control.Answer
	testutil.Eventually(t, time.Minute, "the job is "+string(phase), func() bool {
		a, _ = statusOf(t, runtimeDir, args...)
		return a.Phase == phase
	})
	for _, r := range a.Ranks {
		if r.Phase == report.PhaseRunning || phase == report.PhasePaused && unix.Kill(r.PID, 0) == nil {
			t.Errorf("rank %d still runs: %+v", r.Rank, r)
		}
	}
	return a
}

// holds reports whether a condition of a status holds.
func holds(d report.Status, kind string) bool {
	for _, c := range d.Conditions {
		if string(c.Type) == kind {
			return c.Status == "True"
		}
	}
	return false
}

// TestPause pauses a job on one node, whose deadline waits meanwhile, resumes it, by another command, too, and stops it
// while it is paused.
func TestPause(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "other.sh")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho \"other $1 of $RANK\"\nwhile :; do sleep 0.2; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	j := start(t, nil, "run", "-n", "2", "--run-id", "train-7", "--max-restarts", "1", "--active-deadline", "1h", "--tee", "3",
		"--", "sh", "-c",
		untilStopped)
	a := untilRanks(t, j.runtimeDir, 2)
	steering(t, j.runtimeDir, "resume").expect(t, 2, "it is not paused (Running)")
	steering(t, j.runtimeDir, "pause").expect(t, 0, "train-7: the job is being paused: its workers have ", "muster resume")
	b := untilPhase(t, j.runtimeDir, report.PhasePaused)
	if b.Generation != 1 || b.RestartCount != 0 || b.Reason != "PauseRequested" || !holds(b.Status, "Paused") ||
		!holds(b.Status, "Suspended") ||
		holds(b.Status, "Running") || b.Counts.Stopped != 2 || len(b.Ranks) != 2 || b.Ranks[1].Phase != report.PhaseStopped ||
		!strings.Contains(b.Message, fmt.Sprintf("user %d has paused the job", os.Getuid())) {
		t.Errorf("%+v", b)
	}
	steering(t, j.runtimeDir, "pause").expect(t, 2, "is paused already", "muster resume")
	steering(t, j.runtimeDir, "restart").expect(t, 75, "they do not run (Paused)")
	steering(t, j.runtimeDir, "status").expect(t, 0, "job train-7 (sh): Paused, PauseRequested")
	steering(t, j.runtimeDir, "resume").expect(t, 0, "start again")
	c := untilRanks(t, j.runtimeDir, 2)
	if c.Generation != 2 || c.RestartCount != 0 || c.Ranks[0].PID == a.Ranks[0].PID || holds(c.Status, "Paused") ||
		!holds(c.Status, "Running") ||
		c.Reason != "" {
		t.Errorf("%+v", c)
	}

	steering(t, j.runtimeDir, "pause").expect(t, 0)
	untilPhase(t, j.runtimeDir, report.PhasePaused)
	steering(t, j.runtimeDir, "resume", "--", filepath.Join(filepath.Dir(other), "none")).expect(t, 2, "the job stays paused", "none")
	steering(t, j.runtimeDir, "resume", "--").expect(t, 2, "no command behind --")
	steering(t, j.runtimeDir, "resume", "a", "b", "--", other).expect(t, 2, "takes one job")
	if d, _ := statusOf(t, j.runtimeDir); d.Phase != report.PhasePaused || d.Generation != 3 {
		t.Errorf("%+v", d.Status)
	}
	steering(t, j.runtimeDir, "resume", "train-7", "--", other, "two words").expect(t, 0, "with the new command")
	if d := untilRanks(t, j.runtimeDir, 2); d.Name != other {
		t.Errorf("it is called %q", d.Name)
	}
	testutil.Eventually(t, time.Minute, "the other command runs", func() bool {
		return strings.Contains(steering(t, j.runtimeDir, "logs").stdout, "other two words of 1")
	})
	steering(t, j.runtimeDir, "restart").expect(t, 0) // the new command stays
	testutil.Eventually(t, time.Minute, "the other command runs again", func() bool {
		d, _ := statusOf(t, j.runtimeDir)
		return d.Generation == 5 && d.Name == other && strings.Contains(steering(t, j.runtimeDir, "logs").stdout, "other two words of 1")
	})

	steering(t, j.runtimeDir, "pause").expect(t, 0)
	untilPhase(t, j.runtimeDir, report.PhasePaused)
	steering(t, j.runtimeDir, "events").expect(t, 0, "pause was asked for by user", "resume was asked for by user",
		" Paused, round 1, 0 restarts",
		" Resuming, round ")
	steering(t, j.runtimeDir, "stop").expect(t, 0, "is being stopped")
	if got := j.wait(); got.status != 143 || strings.Contains(got.stderr, "muster: error") {
		t.Errorf("status %d:\n%s", got.status, got.stderr)
	}
	j.nothingLeft(j.runtimeDir)
}

// TestPauseStopsTheDeadline has one job pause for longer than its deadline, and one go on until its deadline after a
// pause.
func TestPauseStopsTheDeadline(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	paused := func(t *testing.T) *testJob {
		t.Parallel()
		j := start(t, nil, "run", "-n", "1", "--active-deadline", "30s", "--", "sh", "-c", untilStopped)
		untilRanks(t, j.runtimeDir, 1)
		steering(t, j.runtimeDir, "pause").expect(t, 0)
		untilPhase(t, j.runtimeDir, report.PhasePaused)
		return j
	}
	t.Run("waits", func(t *testing.T) {
		j := paused(t)
		time.Sleep(time.Until(j.began.Add(32 * time.Second)))
		untilPhase(t, j.runtimeDir, report.PhasePaused)
		steering(t, j.runtimeDir, "resume").expect(t, 0)
		untilRanks(t, j.runtimeDir, 1) // and it runs, though the time is over
		steering(t, j.runtimeDir, "stop").expect(t, 0)
		j.wait().expect(t, 143)
	})
	t.Run("goes on", func(t *testing.T) {
		j := paused(t)
		steering(t, j.runtimeDir, "resume").expect(t, 0)
		j.wait().expect(t, 124)
	})
}

// TestPauseInEachPhase pauses jobs that wait for other nodes, that pause before a restart, and whose workers do not
// heed SIGTERM; a signal ends each while it is paused.
func TestPauseInEachPhase(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		phase  report.Phase
		paused bool // it comes to that
	}{
		"meeting": {
			[]string{"--nnodes", "2", "--rdzv", "muster://127.0.0.1:PORT", "--", "sh", "-c", untilStopped},
			report.PhasePending, false,
		},
		"pausing": {[]string{"--max-restarts", "3", "--restart-delay", "1h", "--", "sh", "-c", "exit 3"}, report.PhaseRestarting, true},
		"this node": {
			[]string{"--max-restarts", "3", "--restart-delay", "1h", "--restart-scope", "node", "--", "sh", "-c", "exit 3"},
			report.PhaseRestarting, true,
		},
		"deaf": {[]string{"--grace", "2s", "--", "sh", "-c", `trap "" TERM; while :; do sleep 0.2; done`}, report.PhaseRunning, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, arg := range c.args {
				c.args[i] = strings.Replace(arg, "PORT", freePort(t), 1)
			}
			j := start(t, nil, append([]string{"run", "-n", "1", "--run-id", "it"}, c.args...)...)
			testutil.Eventually(t, time.Minute, "it is "+string(c.phase), func() bool {
				a, _ := statusOf(t, j.runtimeDir)
				return a.Phase == c.phase && (c.phase != report.PhaseRestarting || a.RestartCount == 2) // the first restart is at once
			})
			asked := steering(t, j.runtimeDir, "pause")
			asked.expect(t, 0)
			if before := strings.Contains(asked.stdout, "before"); before != (c.phase != report.PhaseRunning) {
				t.Errorf("%s", asked.stdout)
			}
			if c.paused {
				if a := untilPhase(t, j.runtimeDir, report.PhasePaused); c.phase == report.PhaseRestarting && a.RestartCount != 2 {
					t.Errorf("%+v", a.Status)
				}
			} else {
				steering(t, j.runtimeDir, "pause").expect(t, 2, "already")
				steering(t, j.runtimeDir, "resume").expect(t, 75, "about to be paused")
			}
			if err := j.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			j.wait().expect(t, 130)
		})
	}
}

// TestPauseWorld pauses and resumes a job of three agents of torchrun's name, each time by another one, kills an agent
// while it is paused, has one stand still, and stops it.
func TestPauseWorld(t *testing.T) {
	t.Parallel()
	flags, _ := staticFlags(t, 3)
	m := newMeet(t, untilStopped, append(flags, "--nproc-per-node=2", "--max-restarts=9")...)
	m.native = true
	node := func(rank int) *testJob {
		return m.start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*testJob{node(0), node(1), node(2)}
	untilRanks(t, agents[0].runtimeDir, 6)
	all := func(phase report.Phase, generation int) {
		t.Helper()
		for _, j := range agents {
			testutil.Eventually(t, time.Minute, fmt.Sprintf("all nodes are %s in round %d", phase, generation), func() bool {
				a, _ := statusOf(t, j.runtimeDir)
				in := 0
				for _, task := range a.Tasks {
					if task.Phase == phase && task.LastKnown == nil {
						in++
					}
				}
				return a.Phase == phase && in == 3 && a.Generation >= generation && a.RestartCount == 0
			})
		}
	}
	steering(t, agents[2].runtimeDir, "pause").expect(t, 0)
	all(report.PhasePaused, 1)
	steering(t, agents[1].runtimeDir, "pause").expect(t, 2, "already")
	steering(t, agents[1].runtimeDir, "resume", "--", filepath.Join(t.TempDir(), "none.py")).expect(t, 2, "stays paused: node ", "none.py")
	steering(t, agents[1].runtimeDir, "resume").expect(t, 0)
	all(report.PhaseRunning, 2)
	steering(t, agents[0].runtimeDir, "pause").expect(t, 0)
	all(report.PhasePaused, 3)

	// One that is killed is missed, and its successor learns that the job is paused.
	if err := agents[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agents[1].wait()
	agents[1] = node(1)
	all(report.PhasePaused, 4)
	// One that stands still is missed, too, and comes back.
	if err := agents[2].Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "it is missed", func() bool {
		return strings.Count(agents[0].err.String(), "the job stays paused") == 2
	})
	if err := agents[2].Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	all(report.PhasePaused, 5)
	// All of them start then.
	steering(t, agents[2].runtimeDir, "resume").expect(t, 0)
	all(report.PhaseRunning, 6)
	steering(t, agents[1].runtimeDir, "pause").expect(t, 0)
	all(report.PhasePaused, 7)
	steering(t, agents[1].runtimeDir, "stop").expect(t, 0)
	for _, j := range agents {
		if got := m.ends(j, 143); strings.Contains(got.stderr, "muster: error") {
			t.Errorf("who has stopped a job needs no report:\n%s", got.stderr)
		}
	}
}

// TestPauseLauncher pauses and resumes jobs by the muster that has started all their nodes.
func TestPauseLauncher(t *testing.T) {
	dir := t.TempDir()
	discovery, other := filepath.Join(dir, "hosts.sh"), filepath.Join(dir, "other.sh")
	for path, text := range map[string]string{
		discovery: "#!/bin/sh\necho localhost:2\n", other: "#!/bin/sh\necho other $1; while :; do sleep 0.2; done\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		args    []string
		refused string
	}{
		"hosts": {[]string{"run", "--hosts", "localhost,127.0.0.1", "--", "sh", "-c", untilStopped}, ""},
		"simulated": {
			[]string{"run", "--simulate-nodes", "2", "--nnodes", "2", "-n", "1", "--", "sh", "-c", untilStopped}, "",
		},
		"elastic": {
			[]string{"horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", discovery, "sh", "-c", untilStopped},
			"cannot pause an elastic job of Horovod",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")}, c.args...)
			untilRanks(t, j.runtimeDir, 2)
			if c.refused != "" {
				steering(t, j.runtimeDir, "pause").expect(t, 2, c.refused)
				steering(t, j.runtimeDir, "resume").expect(t, 2, "cannot resume an elastic job of Horovod")
			} else {
				steering(t, j.runtimeDir, "pause").expect(t, 0, "muster resume")
				testutil.Eventually(t, time.Minute, "both nodes pause", func() bool {
					a, _ := statusOf(t, j.runtimeDir)
					return a.Phase == report.PhasePaused && len(a.Tasks) == 2 && a.Tasks[0].Phase == report.PhasePaused &&
						a.Tasks[1].Phase == report.PhasePaused
				})
				steering(t, j.runtimeDir, "pause").expect(t, 2, "already")
				steering(t, j.runtimeDir, "resume", "--", filepath.Join(dir, "none")).expect(t, 2, "the job stays paused: node ")
				steering(t, j.runtimeDir, "resume", "--", other, "words").expect(t, 0, "with the new command")
				untilRanks(t, j.runtimeDir, 2)
				testutil.Eventually(t, time.Minute, "the other command runs",
					func() bool { return strings.Count(j.out.String(), "other words") == 2 })
			}
			steering(t, j.runtimeDir, "stop").expect(t, 0, "is being stopped")
			j.wait().expect(t, 143)
			j.nothingLeft(j.runtimeDir)
		})
	}
}

package steer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/report"
	"muster/test/drive"
)

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
	j := drive.Start(t, nil, "run", "-n", "2", "--run-id", "train-7", "--max-restarts", "1", "--active-deadline", "1h", "--tee", "3",
		"--", "sh", "-c",
		drive.UntilStopped)
	a := drive.UntilRanks(t, j.RuntimeDir, 2)
	drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 2, "it is not paused (Running)")
	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0, "train-7: the job is being paused: its workers have ", "muster resume")
	b := drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	if b.Generation != 1 || b.RestartCount != 0 || b.Reason != "PauseRequested" || !holds(b.Status, "Paused") ||
		!holds(b.Status, "Suspended") ||
		holds(b.Status, "Running") || b.Counts.Stopped != 2 || len(b.Ranks) != 2 || b.Ranks[1].Phase != report.PhaseStopped ||
		!strings.Contains(b.Message, fmt.Sprintf("user %d has paused the job", os.Getuid())) {
		t.Errorf("%+v", b)
	}
	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 2, "is paused already", "muster resume")
	drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 75, "they do not run (Paused)")
	drive.Beside(t, j.RuntimeDir, "status").Expect(t, 0, "job train-7 (sh): Paused, PauseRequested")
	drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 0, "start again")
	c := drive.UntilRanks(t, j.RuntimeDir, 2)
	if c.Generation != 2 || c.RestartCount != 0 || c.Ranks[0].PID == a.Ranks[0].PID || holds(c.Status, "Paused") ||
		!holds(c.Status, "Running") ||
		c.Reason != "" {
		t.Errorf("%+v", c)
	}

	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0)
	drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	drive.Beside(t, j.RuntimeDir, "resume", "--", filepath.Join(filepath.Dir(other), "none")).Expect(t, 2, "the job stays paused", "none")
	drive.Beside(t, j.RuntimeDir, "resume", "--").Expect(t, 2, "no command behind --")
	drive.Beside(t, j.RuntimeDir, "resume", "a", "b", "--", other).Expect(t, 2, "takes one job")
	if d, _ := drive.StatusOf(t, j.RuntimeDir); d.Phase != report.PhasePaused || d.Generation != 3 {
		t.Errorf("%+v", d.Status)
	}
	drive.Beside(t, j.RuntimeDir, "resume", "train-7", "--", other, "two words").Expect(t, 0, "with the new command")
	if d := drive.UntilRanks(t, j.RuntimeDir, 2); d.Name != other {
		t.Errorf("it is called %q", d.Name)
	}
	testutil.Eventually(t, time.Minute, "the other command runs", func() bool {
		return strings.Contains(drive.Beside(t, j.RuntimeDir, "logs").Stdout, "other two words of 1")
	})
	drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 0) // the new command stays
	testutil.Eventually(t, time.Minute, "the other command runs again", func() bool {
		d, _ := drive.StatusOf(t, j.RuntimeDir)
		return d.Generation == 5 && d.Name == other &&
			strings.Contains(drive.Beside(t, j.RuntimeDir, "logs").Stdout, "other two words of 1")
	})

	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0)
	drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	drive.Beside(t, j.RuntimeDir, "events").Expect(t, 0, "pause was asked for by user", "resume was asked for by user",
		" Paused, round 1",
		" Resuming, round ")
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0, "is being stopped")
	if got := j.End(); got.Status != 143 || strings.Contains(got.Stderr, "muster: error") {
		t.Errorf("status %d:\n%s", got.Status, got.Stderr)
	}
	j.NothingLeft(j.RuntimeDir)
}

// TestPauseStopsTheDeadline has one job pause for longer than its deadline, and one go on until its deadline after a
// pause.
func TestPauseStopsTheDeadline(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	paused := func(t *testing.T) *drive.Job {
		t.Parallel()
		j := drive.Start(t, nil, "run", "-n", "1", "--active-deadline", "30s", "--", "sh", "-c", drive.UntilStopped)
		drive.UntilRanks(t, j.RuntimeDir, 1)
		drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0)
		drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
		return j
	}
	t.Run("waits", func(t *testing.T) {
		j := paused(t)
		time.Sleep(time.Until(j.Began.Add(32 * time.Second)))
		drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
		drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 0)
		drive.UntilRanks(t, j.RuntimeDir, 1) // and it runs, though the time is over
		drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
		j.End().Expect(t, 143)
	})
	t.Run("goes on", func(t *testing.T) {
		j := paused(t)
		drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 0)
		j.End().Expect(t, 124)
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
			[]string{"--nnodes", "2", "--rdzv", "muster://127.0.0.1:PORT", "--", "sh", "-c", drive.UntilStopped},
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
				c.args[i] = strings.Replace(arg, "PORT", drive.FreePort(t), 1)
			}
			j := drive.Start(t, nil, append([]string{"run", "-n", "1", "--run-id", "it"}, c.args...)...)
			testutil.Eventually(t, time.Minute, "it is "+string(c.phase), func() bool {
				a, _ := drive.StatusOf(t, j.RuntimeDir)
				return a.Phase == c.phase && (c.phase != report.PhaseRestarting || a.RestartCount == 2) // the first restart is at once
			})
			asked := drive.Beside(t, j.RuntimeDir, "pause")
			asked.Expect(t, 0)
			if before := strings.Contains(asked.Stdout, "before"); before != (c.phase != report.PhaseRunning) {
				t.Errorf("%s", asked.Stdout)
			}
			if c.paused {
				if a := drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused); c.phase == report.PhaseRestarting && a.RestartCount != 2 {
					t.Errorf("%+v", a.Status)
				}
			} else {
				drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 2, "already")
				drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 75, "about to be paused")
			}
			if err := j.Process.Signal(unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			j.End().Expect(t, 130)
		})
	}
}

// TestPauseWorld pauses and resumes a job of three agents of torchrun's name, each time by another one, kills an agent
// while it is paused, has one stand still, and stops it.
func TestPauseWorld(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 3)
	m := drive.NewMeet(t, drive.UntilStopped, append(flags, "--nproc-per-node=2", "--max-restarts=9")...)
	m.Native = true
	node := func(rank int) *drive.Job {
		return m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1))
	}
	agents := []*drive.Job{node(0), node(1), node(2)}
	drive.UntilRanks(t, agents[0].RuntimeDir, 6)
	all := func(phase report.Phase, generation int) {
		t.Helper()
		for _, j := range agents {
			testutil.Eventually(t, time.Minute, fmt.Sprintf("all nodes are %s in round %d", phase, generation), func() bool {
				a, _ := drive.StatusOf(t, j.RuntimeDir)
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
	drive.Beside(t, agents[2].RuntimeDir, "pause").Expect(t, 0)
	all(report.PhasePaused, 1)
	drive.Beside(t, agents[1].RuntimeDir, "pause").Expect(t, 2, "already")
	drive.Beside(t, agents[1].RuntimeDir, "resume", "--", filepath.Join(t.TempDir(), "none.py")).
		Expect(t, 2, "stays paused: node ", "none.py")
	drive.Beside(t, agents[1].RuntimeDir, "resume").Expect(t, 0)
	all(report.PhaseRunning, 2)
	drive.Beside(t, agents[0].RuntimeDir, "pause").Expect(t, 0)
	all(report.PhasePaused, 3)

	// One that is killed is missed, and its successor learns that the job is paused.
	if err := agents[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agents[1].End()
	agents[1] = node(1)
	all(report.PhasePaused, 4)
	// One that stands still is missed, too, and comes back.
	if err := agents[2].Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "it is missed", func() bool {
		return strings.Count(agents[0].Err.String(), "the job stays paused") == 2
	})
	if err := agents[2].Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	all(report.PhasePaused, 5)
	// All of them start then.
	drive.Beside(t, agents[2].RuntimeDir, "resume").Expect(t, 0)
	all(report.PhaseRunning, 6)
	drive.Beside(t, agents[1].RuntimeDir, "pause").Expect(t, 0)
	all(report.PhasePaused, 7)
	drive.Beside(t, agents[1].RuntimeDir, "stop").Expect(t, 0)
	for _, j := range agents {
		if got := m.Ends(j, 143); strings.Contains(got.Stderr, "muster: error") {
			t.Errorf("who has stopped a job needs no report:\n%s", got.Stderr)
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
		"hosts": {[]string{"run", "--hosts", "localhost,127.0.0.1", "--", "sh", "-c", drive.UntilStopped}, ""},
		"simulated": {
			[]string{"run", "--simulate-nodes", "2", "--nnodes", "2", "-n", "1", "--", "sh", "-c", drive.UntilStopped}, "",
		},
		"elastic": {
			[]string{"horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", discovery, "sh", "-c", drive.UntilStopped},
			"cannot pause an elastic job of Horovod",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := drive.Start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")}, c.args...)
			drive.UntilRanks(t, j.RuntimeDir, 2)
			if c.refused != "" {
				drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 2, c.refused)
				drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 2, "cannot resume an elastic job of Horovod")
			} else {
				drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0, "muster resume")
				testutil.Eventually(t, time.Minute, "both nodes pause", func() bool {
					a, _ := drive.StatusOf(t, j.RuntimeDir)
					return a.Phase == report.PhasePaused && len(a.Tasks) == 2 && a.Tasks[0].Phase == report.PhasePaused &&
						a.Tasks[1].Phase == report.PhasePaused
				})
				drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 2, "already")
				drive.Beside(t, j.RuntimeDir, "resume", "--", filepath.Join(dir, "none")).Expect(t, 2, "the job stays paused: node ")
				drive.Beside(t, j.RuntimeDir, "resume", "--", other, "words").Expect(t, 0, "with the new command")
				drive.UntilRanks(t, j.RuntimeDir, 2)
				testutil.Eventually(t, time.Minute, "the other command runs",
					func() bool { return strings.Count(j.Out.String(), "other words") == 2 })
			}
			drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0, "is being stopped")
			j.End().Expect(t, 143)
			j.NothingLeft(j.RuntimeDir)
		})
	}
}

package steer

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/control/show"
	"muster/launch/report"
	"muster/test/drive"
)

// TestSeeAndSteer sees a job on one node with muster ps and status, restarts it, and stops it.
func TestSeeAndSteer(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "2", "--run-id", "train-7", "--max-restarts", "1", "--tee", "3", "--",
		"sh", "-c", drive.UntilStopped)
	a := drive.UntilRanks(t, j.RuntimeDir, 2)
	if a.RunID != "train-7" || a.WorldSize != 2 || a.Muster.Role != control.Agent || a.Muster.PID != j.Process.Pid || a.StartTime == nil {
		t.Errorf("%+v", a)
	}
	for i, r := range a.Ranks {
		if r.Rank != i || r.LocalRank != i || r.PID == 0 || r.StartTime == nil || r.CPUSeconds == nil || r.ResidentBytes == nil ||
			*r.ResidentBytes < 1<<16 || r.LastExit != nil || r.Restarts != 0 {
			t.Errorf("rank %d: %+v", i, r)
		}
	}
	drive.Beside(t, j.RuntimeDir, "ps").Expect(t, 0, "train-7", "Running", strconv.Itoa(j.Process.Pid))
	var list []show.Job
	if got := drive.Beside(t, j.RuntimeDir, "ps", "-o", "json"); json.Unmarshal([]byte(got.Stdout), &list) != nil || len(list) != 1 ||
		list[0].State != "running" || list[0].WorldSize != 2 {
		t.Errorf("%s", got.Stdout)
	}
	drive.Beside(t, j.RuntimeDir, "status").Expect(t, 0, "job train-7 (sh): Running", "2 workers on 1 node", "RANK  NODE")
	drive.Beside(t, j.RuntimeDir, "status", "-o", "wide", "train").Expect(t, 0, "LAST EXIT", " ago")
	drive.Beside(t, j.RuntimeDir, "status", "-o", "yaml", strconv.Itoa(j.Process.Pid)).Expect(t, 0, "\nphase: Running\n", "  - node: ",
		"\nmuster:\n  role: agent\n")
	drive.Beside(t, j.RuntimeDir, "logs").Expect(t, 0, "[rank 0] rank 0 is here", "[rank 1] rank 1 is here")
	drive.Beside(t, j.RuntimeDir, "logs", "--previous").Expect(t, 2, "has not been started again")

	drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 0, "train-7: all workers are being stopped, and start again")
	testutil.Eventually(t, time.Minute, "the workers are others", func() bool {
		b, _ := drive.StatusOf(t, j.RuntimeDir)
		return b.Phase == report.PhaseRunning && b.Generation == 1 && len(b.Ranks) == 2 && b.Ranks[0].PID != a.Ranks[0].PID &&
			b.Ranks[1].Restarts == 1 && b.Ranks[1].LastExit != nil && b.Ranks[1].LastExit.PID == a.Ranks[1].PID &&
			b.Ranks[1].LastExit.Signal == "SIGTERM" && b.Ranks[1].LastExit.Stopped && b.RestartCount == 0
	})
	drive.Beside(t, j.RuntimeDir, "logs", "--rank", "1", "--previous").Expect(t, 0, "rank 1 is here")
	drive.Beside(t, j.RuntimeDir, "events").Expect(t, 0, " Pending, round 0", fmt.Sprintf("rank 0, process %d, started", a.Ranks[0].PID),
		fmt.Sprintf("rank 1, process %d, was killed by SIGTERM, while muster was stopping it", a.Ranks[1].PID),
		fmt.Sprintf("restart was asked for by user %d, process ", os.Getuid()), " Running, round 1\n")
	for _, see := range []string{"status", "top"} {
		drive.Beside(t, j.RuntimeDir, see).Expect(t, 0, "1 restart (0 counted)")
	}
	follow := exec.Command("muster", "events", "-f", "-o", "json", "train-7")
	follow.Env = append(drive.CleanEnviron(), drive.Apart(j.RuntimeDir)...)
	events, err := os.Create(filepath.Join(t.TempDir(), "events"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = events.Close() }()
	follow.Stdout = events
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "events are shown", func() bool {
		info, err := events.Stat()
		return err == nil && info.Size() > 0
	})
	drive.Beside(t, j.RuntimeDir, "stop", "train-7").Expect(t, 0, "train-7: the job is being stopped")
	got := j.End()
	got.Expect(t, 143, "asked to restart the workers", "asked to stop the job")
	if err := follow.Wait(); err != nil {
		t.Errorf("events -f does not end well with the job: %v", err)
	}
	types := map[control.EventType]int{}
	text, err := os.ReadFile(events.Name())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e control.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.RunID != "train-7" || e.Version != 1 {
			t.Errorf("%v: %s", err, line)
		}
		types[e.Type]++
	}
	if types[control.WorkerStarted] != 4 || types[control.RestartRequested] != 1 || types[control.StopRequested] != 1 ||
		types[control.PhaseChanged] < 4 {
		t.Errorf("%v:\n%s", types, text)
	}
	if strings.Contains(got.Stderr, "muster: error") {
		t.Errorf("who has stopped a job needs no report:\n%s", got.Stderr)
	}
	_, ended := drive.StatusOf(t, j.RuntimeDir)
	ended.Expect(t, 2, "no job of yours runs here")
	drive.Beside(t, j.RuntimeDir, "ps").Expect(t, 0, "no job of yours runs here")
	j.NothingLeft(j.RuntimeDir)
}

// twoBusyGPUs is a spec of two GPUs that are in use.
func twoBusyGPUs(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	text := "version: 1\ndefaults: {count: 2, memory_mib: 40960, faults: [" +
		"{gpu: 0, kind: busy, mib: 900, percent: 87}, {gpu: 1, kind: busy, mib: 900, percent: 87}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// usesGPU reports whether a rank's use of its own GPU of twoBusyGPUs is known.
func usesGPU(r *report.Rank) bool {
	return len(r.Devices) == 1 && r.DevicesTime != nil && r.Devices[0].Index == r.LocalRank && r.Devices[0].MemoryBytes != nil &&
		*r.Devices[0].MemoryBytes == 900<<20 && r.Devices[0].Utilization != nil && *r.Devices[0].Utilization == 0.87
}

// TestSeeWorld sees a job of three agents of torchrun's name from each of them, and restarts and stops it by one.
func TestSeeWorld(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 3)
	m := drive.NewMeet(t, drive.UntilStopped, append(flags, "--nproc-per-node=2")...)
	m.Env = append(m.Env, "MUSTER_FAKE="+twoBusyGPUs(t))
	var agents []*drive.Job
	for rank := range 3 {
		agents = append(agents, m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--local-addr=127.0.0.%d", rank+1)))
	}
	for i, j := range agents {
		a := drive.UntilRanks(t, j.RuntimeDir, 6)
		if a.Nodes != 3 || a.WorldSize != 6 || len(a.Tasks) != 3 || a.Counts.Running != 6 || a.Message != "" || a.GroupRank != i {
			t.Errorf("node %d: %+v", i, a.Status)
		}
		for rank, r := range a.Ranks {
			if r.Rank != rank || r.PID == 0 || rank/2 == i && r.CPUSeconds == nil {
				t.Errorf("node %d, rank %d: %+v", i, rank, r)
			}
		}
		testutil.Eventually(t, time.Minute, "what all ranks use is known", func() bool {
			a, _ = drive.StatusOf(t, j.RuntimeDir)
			return len(a.Ranks) == 6 && !slices.ContainsFunc(a.Ranks, func(r report.Rank) bool {
				return r.CPUSeconds == nil || r.ResidentBytes == nil || *r.ResidentBytes < 1<<16 || r.UsageTime == nil || !usesGPU(&r)
			})
		})
	}
	drive.Beside(t, agents[0].RuntimeDir, "status", "-o", "wide").Expect(t, 0, "DEVICE MEM    DEVICE USE", "900MiB/40GiB  87%")
	drive.Beside(t, agents[0].RuntimeDir, "top").Expect(t, 0, "900MiB/40GiB  87%")
	drive.Beside(t, agents[0].RuntimeDir, "metrics", "--world").Expect(t, 0, `muster_worker_device_utilization_ratio{rank="5",node="`,
		`device="1"} 0.87`)
	drive.Beside(t, agents[0].RuntimeDir, "exec", "--rank", "5", "--", "sh", "-c", "echo in $RANK; exit 4").Expect(t, 4, "in 5\n")
	drive.Beside(t, agents[1].RuntimeDir, "restart").Expect(t, 0, "start again")
	for i, j := range agents {
		testutil.Eventually(t, time.Minute, "all workers of a second round run", func() bool {
			a, _ := drive.StatusOf(t, j.RuntimeDir)
			restarted := 0
			for _, r := range a.Ranks {
				if r.Phase == report.PhaseRunning && r.Restarts == 1 {
					restarted++
				}
			}
			return a.Generation == 1 && restarted == 6 && a.RestartCount == 0
		})
		m.Says(agents[i], "somebody has asked for it")
	}
	drive.Beside(t, agents[2].RuntimeDir, "stop").Expect(t, 0, "is being stopped")
	for _, j := range agents {
		if got := m.Ends(j, 143); strings.Contains(got.Stderr, "muster: error") {
			t.Errorf("who has stopped a job needs no report:\n%s", got.Stderr)
		}
	}
}

// TestStopWorldInPause stops a job of two nodes by one of them while both pause for an hour before a restart.
func TestStopWorldInPause(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, "exit 3", append(flags, "--max-restarts=3", "--restart-delay=1h")...)
	m.Native = true
	one, zero := m.Start(1, "--node-rank=1"), m.Start(0, "--node-rank=0")
	for _, j := range []*drive.Job{one, zero} {
		testutil.Eventually(t, time.Minute, "the node pauses", func() bool {
			a, _ := drive.StatusOf(t, j.RuntimeDir)
			return a.Phase == report.PhaseRestarting && a.RestartCount == 2 // the first restart is at once
		})
	}
	drive.Beside(t, one.RuntimeDir, "stop").Expect(t, 0, "is being stopped")
	m.Ends(one, 143)
	m.Ends(zero, 143)
}

// TestSeeLauncher sees jobs by the muster that has started all their nodes: on hosts, simulated, and an elastic one of
// Horovod.
func TestSeeLauncher(t *testing.T) {
	discovery := filepath.Join(t.TempDir(), "hosts.sh")
	if err := os.WriteFile(discovery, []byte("#!/bin/sh\necho localhost:2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args     []string
		role     control.Role
		restarts int // its status
	}{
		"hosts": {[]string{"run", "--hosts", "localhost,127.0.0.1", "--", "sh", "-c", drive.UntilStopped}, control.Launcher, 0},
		"simulated": {
			[]string{"run", "--simulate-nodes", "2", "--nnodes", "2", "-n", "1", "--", "sh", "-c", drive.UntilStopped},
			control.Simulation, 0,
		},
		"elastic": {
			[]string{"horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", discovery, "sh", "-c", drive.UntilStopped},
			control.Driver, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var environ []string
			if c.role == control.Simulation {
				environ = []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")}
			}
			if c.role == control.Launcher {
				environ = []string{"MUSTER_FAKE=" + twoBusyGPUs(t)}
			}
			j := drive.Start(t, environ, c.args...)
			a := drive.UntilRanks(t, j.RuntimeDir, 2)
			testutil.Eventually(t, time.Minute, "the nodes hear that somebody looks at their launcher", func() bool {
				d, _ := drive.StatusOf(t, j.RuntimeDir)
				return c.role != control.Launcher || len(d.Ranks) == 2 && usesGPU(&d.Ranks[0]) && usesGPU(&d.Ranks[1])
			})
			if a.Muster.Role != c.role || a.Muster.PID != j.Process.Pid || a.WorldSize != 2 {
				t.Errorf("%+v", a)
			}
			var list []show.Job
			got := drive.Beside(t, j.RuntimeDir, "ps", "-o", "json")
			if json.Unmarshal([]byte(got.Stdout), &list) != nil || len(list) != 1 {
				t.Errorf("%s", got.Stdout)
			}
			if c.role != control.Driver {
				drive.Beside(t, j.RuntimeDir, "exec", "--rank", "1", "--", "sh", "-c", "echo in $RANK").Expect(t, 0, "in 1\n")
			}
			drive.Beside(t, j.RuntimeDir, "exec", "--rank", "9", "--", "true").Expect(t, 2)
			if drive.Beside(t, j.RuntimeDir, "restart").Expect(t, c.restarts); c.restarts == 0 {
				testutil.Eventually(t, time.Minute, "the workers are others", func() bool {
					b, _ := drive.StatusOf(t, j.RuntimeDir)
					return b.Phase == report.PhaseRunning && len(b.Ranks) == 2 && b.Generation == 1 && b.Ranks[0].PID != a.Ranks[0].PID
				})
			}
			drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0, "is being stopped")
			j.End().Expect(t, 143, "asked to stop the job")
			j.NothingLeft(j.RuntimeDir)
		})
	}
}

// TestStopInEachPhase stops jobs that wait for other nodes, that pause before a restart, that are being stopped
// already, and whose workers do not heed SIGTERM.
func TestStopInEachPhase(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		phase report.Phase
		now   bool
	}{
		"meeting": {
			[]string{"--nnodes", "2", "--rdzv", "muster://127.0.0.1:PORT", "--", "sh", "-c", drive.UntilStopped},
			report.PhasePending, false,
		},
		"no host": {
			[]string{"--nnodes", "2", "--rdzv", "muster://192.0.2.1:9", "--", "sh", "-c", drive.UntilStopped},
			report.PhasePending, false,
		},
		"pausing": {[]string{"--max-restarts", "3", "--restart-delay", "1h", "--", "sh", "-c", "exit 3"}, report.PhaseRestarting, false},
		"deaf": {
			[]string{"--grace", "1h", "--", "sh", "-c", `trap "" TERM; while :; do sleep 0.2; done`},
			report.PhaseRunning,
			true,
		},
		"pausing, --now": {
			[]string{"--max-restarts", "3", "--restart-delay", "1h", "--", "sh", "-c", "exit 3"},
			report.PhaseRestarting, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, arg := range c.args {
				c.args[i] = strings.Replace(arg, "PORT", drive.FreePort(t), 1)
			}
			file := filepath.Join(t.TempDir(), "status")
			j := drive.Start(t, nil, append([]string{"run", "-n", "1", "--run-id", "it", "--status-file", file}, c.args...)...)
			testutil.Eventually(t, time.Minute, "it is "+string(c.phase), func() bool {
				a, got := drive.StatusOf(t, j.RuntimeDir)
				paused := c.phase != report.PhaseRestarting || a.RestartCount == 2 // the first restart is at once
				return a.Phase == c.phase && paused || got.Status == 2 && time.Since(j.Began) > 30*time.Second
			})
			if c.phase != report.PhaseRunning {
				drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 75, "cannot restart the workers now")
			}
			asked := drive.Beside(t, j.RuntimeDir, "stop")
			asked.Expect(t, 0, "is being stopped")
			if told := strings.Contains(asked.Stdout,
				"no worker was started here; the other nodes could not be told: stop them, too"); told !=
				(c.phase == report.PhasePending) {
				t.Errorf("%s", asked.Stdout)
			}
			if c.phase == report.PhaseRunning {
				testutil.Eventually(t, time.Minute, "it is being stopped", func() bool {
					a, _ := drive.StatusOf(t, j.RuntimeDir)
					return a.Phase == report.PhaseTerminating
				})
				drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0, "already")
				drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 75, "cannot restart the workers now")
			}
			if c.now {
				_ = drive.Beside(t, j.RuntimeDir, "stop", "--now") // it may have ended by itself
			}
			if got := j.End(); got.Status != 143 {
				t.Errorf("status %d:\n%s", got.Status, got.Stderr)
			}
			var d report.Status
			if text, err := os.ReadFile(file); err == nil && (json.Unmarshal(text, &d) != nil || d.Phase != report.PhaseFailed ||
				d.Reason != "StopRequested" || *d.ExitStatus != 143) {
				t.Errorf("%s", text)
			}
		})
	}
}

// TestExecAnyRank enters a worker of a job without --debug-mode, and is told of ranks that cannot be entered.
func TestExecAnyRank(t *testing.T) {
	t.Parallel()
	odd := "it's \"odd\" \n\\ \xff"
	j := drive.Start(t, []string{"ODD=" + odd}, "run", "-n", "2", "--run-id", "it", "--env", "ODD", "--fail-policy", "all",
		"--", "sh", "-c", `test $RANK = 1 && exit 5; `+drive.UntilStopped)
	testutil.Eventually(t, time.Minute, "rank 1 has ended", func() bool {
		a, _ := drive.StatusOf(t, j.RuntimeDir)
		return len(a.Ranks) == 2 && a.Ranks[0].Phase == report.PhaseRunning && a.Ranks[1].Phase == report.PhaseFailed &&
			a.Ranks[1].LastExit.ExitCode == 5
	})
	got := drive.Beside(t, j.RuntimeDir, "exec", "--rank", "0", "--", "sh", "-c", `printf %s "$RANK/$WORLD_SIZE $(pwd -P) $ODD"`)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := "0/2 " + here + " " + odd; got.Status != 0 || got.Stdout != want {
		t.Errorf("status %d: %q, want %q\n%s", got.Status, got.Stdout, want, got.Stderr)
	}
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "0", "--dir", filepath.Join(j.RuntimeDir, "muster", "job-it"),
		"--", "sh", "-c", "exit 9").Expect(t, 9)
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "1", "--", "true").Expect(t, 2, "rank 1 of job it has ended")
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "7", "--", "true").Expect(t, 2, "job it has no rank 7")
	drive.Beside(t, j.RuntimeDir, "exec", "--rank", "0", "--run-id", "other", "--", "true").Expect(t, 2, `matches "other"`)
	drive.Beside(t, j.RuntimeDir, "logs").Expect(t, 2, "keeps no log files of rank 0")
	drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0, "without grace")
	j.End().Expect(t, 143)
}

// TestFollowLogs follows a rank over a restart, until the job ends.
func TestFollowLogs(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "2", "--run-id", "it", "--redirects", "3", "--", "sh", "-c",
		`echo "out $RANK round $MUSTER_ROUND"; echo "err $RANK" >&2; printf 'no end'; while :; do sleep 0.2; done`)
	drive.UntilRanks(t, j.RuntimeDir, 2)
	cmd := exec.CommandContext(t.Context(), "muster", "logs", "-f", "--rank", "1", "--tail", "5")
	cmd.Env = append(drive.CleanEnviron(), drive.Apart(j.RuntimeDir)...)
	var out, errs testutil.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := func(text string) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "the log says "+text, func() bool { return strings.Contains(out.String(), text) })
	}
	says("out 1 round 0\nno end")
	drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 0)
	says("out 1 round 1\n")
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End().Expect(t, 143)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
	if strings.Contains(out.String(), "out 0") || strings.Count(errs.String(), "err 1\n") != 2 {
		t.Errorf("%q, %q", out.String(), errs.String())
	}
}

// TestWrongJobs: no job, two that match, a muster that stands still, one that was killed, somebody else's directory.
func TestWrongJobs(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	environ := []string{"XDG_RUNTIME_DIR=" + shared}
	one := drive.Start(t, environ, "run", "-n", "1", "--run-id", "train-1", "--", "sh", "-c", drive.UntilStopped)
	two := drive.Start(t, environ, "run", "-n", "1", "--run-id", "train-2", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, shared, 1, "train-1")
	drive.UntilRanks(t, shared, 1, "train-2")
	drive.Beside(t, shared, "stop").Expect(t, 2, "there are 2 jobs here: train-1 (pid ", "name one by its run id")
	drive.Beside(t, shared, "status", "train").Expect(t, 2, `2 jobs here match "train"`)
	drive.Beside(t, shared, "exec", "--rank", "0", "--", "true").Expect(t, 2, "there are 2 jobs with a rank 0 here")
	drive.Beside(t, shared, "stop", "eval").Expect(t, 2, `no job that runs here matches "eval"`, "these run: train-1")
	drive.Beside(t, shared, "stop", "").Expect(t, 2, "empty name")
	drive.Beside(t, shared, "stop", "a", "b").Expect(t, 2, "takes one job")
	drive.Beside(t, shared, "status", "-o", "xml").Expect(t, 2, `-o "xml"`)
	drive.Beside(t, shared, "logs", "--rank", "1-0", "train-1").Expect(t, 2, `"1-0" is no rank`)
	drive.Beside(t, shared, "logs", "-f", "--previous", "train-1").Expect(t, 2, "together")
	drive.Beside(t, shared, "__complete", "stop", "tr").Expect(t, 0, "train-1\ntrain-2\n")

	if err := one.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "all of its threads are stopped", func() bool {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", one.Process.Pid))
		return len(stats) > 0 && !slices.ContainsFunc(stats, func(path string) bool {
			text, _ := os.ReadFile(path)
			return !strings.Contains(string(text), ") T ")
		})
	})
	for _, args := range [][]string{
		{"status", "train-1"},
		{"stop", "--now", "train-1"},
		{"restart", strconv.Itoa(one.Process.Pid)},
		{"logs", "train-1"},
		{"exec", "--rank", "0", "--run-id", "train-1", "--", "true"},
	} {
		got := drive.Beside(t, shared, args...)
		got.Expect(t, 75, "does not answer within 5s", "SIGSTOP")
		if got.Elapsed > 30*time.Second {
			t.Errorf("%q took %v", args, got.Elapsed)
		}
	}
	drive.Beside(t, shared, "ps").Expect(t, 0, "silent", "train-2  Running")
	if err := one.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	drive.Beside(t, shared, "stop", "train-1").Expect(t, 0)
	one.End().Expect(t, 143)

	drive.Beside(t, shared, "stop").Expect(t, 0, "train-2: ") // the only one
	two.End().Expect(t, 143)
	stale := filepath.Join(shared, "muster", "job-old")
	if err := os.MkdirAll(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	drive.Beside(t, shared, "ps").Expect(t, 0, "old  dead")
	drive.Beside(t, shared, "status", "old").Expect(t, 2, "its muster is dead")
	if os.Geteuid() == 0 {
		if err := os.Chown(stale, testutil.OtherUserID, testutil.OtherUserID); err != nil {
			t.Fatal(err)
		}
		drive.Beside(t, shared, "status", stale).Expect(t, 2, "not one that only you can write to")
	}
}

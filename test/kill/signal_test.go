package kill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// running starts muster with two workers that run a shell script, and waits until each has said ready.
func running(t *testing.T, flags []string, script string) *drive.Job {
	t.Helper()
	args := append(append([]string{"run", "-n", "2"}, flags...), "--", "sh", "-c", script)
	j := drive.Start(t, nil, args...)
	testutil.Eventually(t, 60*time.Second, "both workers are ready", func() bool { return strings.Count(j.Out.String(), "ready") == 2 })
	return j
}

// TestSignalIsForwarded expects that workers get the very signal that muster got, may end in their own time, and that
// muster's status says which signal it was, whatever theirs is.
func TestSignalIsForwarded(t *testing.T) {
	for _, s := range []struct {
		signal syscall.Signal
		name   string
	}{{syscall.SIGTERM, "TERM"}, {syscall.SIGINT, "INT"}, {syscall.SIGHUP, "HUP"}, {syscall.SIGQUIT, "QUIT"}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			j := running(t, nil, fmt.Sprintf(`trap 'echo got it; exit 3' %s; echo ready; while :; do sleep 0.05; done`, s.name))
			j.Signal(s.signal)
			got := j.End()
			if got.Status != 128+int(s.signal) || strings.Count(got.Stdout, "got it") != 2 {
				t.Errorf("status %d, output:\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestGraceEnds kills workers that do not mind the signal when the grace is over.
func TestGraceEnds(t *testing.T) {
	t.Parallel()
	j := running(t, []string{"--grace", "300ms"}, `trap '' TERM; echo ready; while :; do sleep 0.05; done`)
	j.Signal(syscall.SIGTERM)
	if got := j.End(); got.Status != 143 {
		t.Errorf("status %d, want 143\n%s", got.Status, got.Stderr)
	}
}

// TestSecondInterruptKills ends a long grace at once.
func TestSecondInterruptKills(t *testing.T) {
	t.Parallel()
	j := running(t, []string{"--grace", "1h"}, `trap 'echo first' INT; echo ready; while :; do sleep 0.05; done`)
	j.Signal(syscall.SIGINT)
	testutil.Eventually(t, 60*time.Second, "the workers got the first SIGINT",
		func() bool { return strings.Count(j.Out.String(), "first") >= 2 })
	time.Sleep(100 * time.Millisecond) // nobody types faster: within 5 ms it is taken for the same one
	j.Signal(syscall.SIGINT)
	if got := j.End(); got.Status != 130 {
		t.Errorf("status %d, want 130\n%s", got.Status, got.Stderr)
	}
}

// TestSaveSignal passes the signal of --ckpt-signal on to the worker that handles it. The other one, which would die of
// it, goes on.
func TestSaveSignal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"USR1", "XCPU"} {
		j := running(t, []string{"--ckpt-signal", name, "--ckpt-notices", "off"}, `if [ $RANK = 1 ]; then trap 'echo saved' `+name+
			`; fi; trap 'echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done`)
		j.Signal(map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "XCPU": syscall.SIGXCPU}[name])
		testutil.Eventually(t, 60*time.Second, "the worker got the signal",
			func() bool { return strings.Contains(j.Out.String(), "saved") })
		j.Signal(syscall.SIGTERM)
		if got := j.End(); got.Status != 143 || strings.Count(got.Stdout, "ended") != 2 || strings.Count(got.Stdout, "saved") != 1 ||
			!strings.Contains(got.Stderr, "SIG"+name) {
			t.Errorf("%s: status %d\n%s%s", name, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// TestUserSignalEndsNothing passes SIGUSR1 on to the workers, which go on, and not to their children, whom it would
// end.
func TestUserSignalEndsNothing(t *testing.T) {
	t.Parallel()
	j := running(t, nil,
		`trap 'echo saved' USR1; trap 'exit 0' TERM; sleep 1000 & child=$!; echo ready; `+
			`while kill -0 $child; do sleep 0.05; done; echo child gone`)
	j.Signal(syscall.SIGUSR1)
	testutil.Eventually(t, 60*time.Second, "the workers got SIGUSR1", func() bool { return strings.Count(j.Out.String(), "saved") == 2 })
	if out := j.Out.String(); strings.Contains(out, "child gone") {
		t.Errorf("a worker's child was hit: %s", out)
	}
	j.Signal(syscall.SIGTERM)
	if got := j.End(); got.Status != 143 {
		t.Errorf("status %d, want 143\n%s", got.Status, got.Stderr)
	}
}

// TestNohup leaves a signal alone that was ignored when muster started.
func TestNohup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	done := filepath.Join(dir, "done")
	cmd := exec.Command("nohup", "muster", "run", "--", "sh", "-c", `echo $$ > ready; while [ ! -e go ]; do sleep 0.05; done; touch done`)
	cmd.Dir = dir
	cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 60*time.Second, "the worker is ready",
		func() bool { _, err := os.Stat(filepath.Join(dir, "ready")); return err == nil })
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("muster under nohup: %v", err)
	}
	if _, err := os.Stat(done); err != nil {
		t.Errorf("the worker did not finish: %v", err)
	}
}

// TestReaderGone goes on with the job when the reader of its output has gone away, as in "muster ... | head -1".
func TestReaderGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c",
		`{ muster run -n 2 -- sh -c 'i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; touch done$RANK'; `+
			`echo $? > status; } | head -1`)
	cmd.Dir = dir
	cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testutil.Eventually(t, 60*time.Second, "the job ends",
		func() bool { _, err := os.Stat(filepath.Join(dir, "status")); return err == nil })
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil || strings.TrimSpace(string(status)) != "0" {
		t.Errorf("status %q, want 0 (%v)", status, err)
	}
	for _, name := range []string{"done0", "done1"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestProcessOne runs muster as process 1 of a pid namespace, as a container's entrypoint does: it reaps what workers
// orphan, forwards the signal that ends the container, and tells the status.
func TestProcessOne(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root (for a pid namespace)")
	}
	binary, err := exec.LookPath("muster")
	if err != nil {
		t.Fatal(err)
	}
	script := `[ $RANK = 1 ] || { (sleep 0.05 &); (sleep 0.1 &); sleep 1; ps -o stat=,ppid= -A; echo counted; exit 4; }; sleep 1000`
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", binary, "run", "-n", "2", "--", "sh", "-c", script)
	cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+t.TempDir())
	var stdout, stderr testutil.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("%v, want status 4\n%s%s", err, stdout.String(), stderr.String())
	}
	if !strings.Contains(stdout.String(), "counted") {
		t.Fatalf("no process list:\n%s", stdout.String())
	}
	for line := range strings.Lines(stdout.String()) {
		if _, ps, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(strings.TrimSpace(ps), "Z") {
			t.Errorf("a zombie is left: %s", line)
		}
	}
}

// TestCleanPolicies looks at what is ended with the job: a daemon that a finished worker left, a worker that still
// runs.
func TestCleanPolicies(t *testing.T) {
	for _, c := range []struct {
		policy string
		script string // MARK is a number of seconds that nobody else sleeps
		left   int
		status int
	}{
		{"all", `setsid sleep MARK > /dev/null 2>&1 &`, 0, 0},
		{"unfinished", `setsid sleep MARK > /dev/null 2>&1 &`, 1, 0},
		{"all", `[ $RANK = 0 ] && exit 5; sleep MARK`, 0, 5},
		{"unfinished", `[ $RANK = 0 ] && exit 5; sleep MARK`, 0, 5},
		{"none", `[ $RANK = 0 ] && exit 5; sleep 0.5; echo ended by itself`, 0, 5},
	} {
		t.Run(c.policy+" "+c.script, func(t *testing.T) {
			t.Parallel()
			mark := fmt.Sprintf("4%d.%d", os.Getpid(), time.Now().UnixNano())
			workers := "2"
			if c.left > 0 {
				workers = "1"
			}
			got := drive.Run(t, nil, "run", "-n", workers, "--clean-policy", c.policy, "--", "sh", "-c",
				strings.ReplaceAll(c.script, "MARK", mark))
			if got.Status != c.status {
				t.Errorf("status %d, want %d\n%s", got.Status, c.status, got.Stderr)
			}
			if strings.Contains(c.script, "by itself") && !strings.Contains(got.Stdout, "ended by itself") {
				t.Errorf("the worker was not waited for: %s", got.Stdout)
			}
			left := drive.Processes(t, mark)
			if len(left) != c.left {
				t.Errorf("%d processes are left, want %d", len(left), c.left)
			}
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	}
}

// TestStopDuringRestart stops a job whose workers are being stopped for a restart: no new one may start.
func TestStopDuringRestart(t *testing.T) {
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			j := drive.Start(t, nil, "run", "-n", "2", "--max-restarts", "3", "--", "sh", "-c",
				`echo start $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || { sleep 0.2; exit 3; }; `+
					`trap 'echo stopping; sleep 0.5; exit 0' TERM; while :; do sleep 0.02; done`)
			testutil.Eventually(t, 60*time.Second, "rank 0 is being stopped",
				func() bool { return strings.Contains(j.Out.String(), "stopping") })
			j.Signal(syscall.SIGTERM)
			if got := j.End(); got.Status != 143 || strings.Contains(got.Stdout, "start 1") {
				t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestEarlyFileTimer lets a worker's timer expire before the last worker was started.
func TestEarlyFileTimer(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "timer")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil { // left by a killed agent
		t.Fatal(err)
	}
	script := `echo '{"version": 1, "pid": '$$', "scope_id": "s", "expiration_time": 1.5, "signal": 9}' ` +
		`> "$TORCHELASTIC_TIMER_FILE"; sleep 60`
	got := drive.Run(t, []string{"TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE=" + fifo}, "run", "-n", "4", "--", "sh",
		"-c", script)
	if got.Status != 137 {
		t.Errorf("status %d, want 137\n%s", got.Status, got.Stderr)
	}
	if _, err := os.Stat(fifo); err == nil {
		t.Error("the timer's FIFO stays")
	}
}

// TestStopBeforeRestartWithFilters stops a job in the pause before a restart, when the files of the round have been
// closed.
func TestStopBeforeRestartWithFilters(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, []string{"MUSTER_RESTART_DELAY=1h"}, "torchrun", "--standalone", "--max-restarts", "3", "--tee", "1",
		"--duplicate-stdout-filters", "start",
		"--no-python", "sh", "-c", "echo start $TORCHELASTIC_RESTART_COUNT; exit 3")
	testutil.Eventually(t, 60*time.Second, "the second round has ended", func() bool {
		return strings.Contains(j.Out.String(), "start 1") && strings.Contains(j.Err.String(), "root cause") &&
			strings.Count(j.Err.String(), "root cause") == 2
	})
	j.Signal(syscall.SIGTERM)
	if got := j.End(); got.Status != 143 {
		t.Errorf("status %d, want 143\n%s", got.Status, got.Stderr)
	}
}

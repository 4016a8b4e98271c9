package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"muster/cmd/console"
	"muster/cmd/here"
	"muster/internal/testutil"
	"muster/launch/report"
)

// TestMain puts this test binary on PATH as muster (and as torchrun, dlrover-run and accelerate, links users make), so
// that every test runs the whole program in processes of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == here.GuardianArg || os.Args[1] == here.SalvageArg) {
		os.Exit(run()) // muster starts these as /proc/self/exe, a name that testscript does not know
	}
	if strings.HasSuffix(os.Args[0], ".test") &&
		signal.Ignored(syscall.SIGHUP) { // by nohup, in front of go test: what the tests start would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	if strings.HasSuffix(os.Args[0], ".test") {
		if python, err := plainPython(); err == nil { // else each Python of a worker begins as a shim's shell scripts
			_ = os.Setenv("PATH", filepath.Dir(python)+":"+os.Getenv("PATH"))
		}
	}
	program := func() { os.Exit(run()) }
	if strings.HasPrefix(filepath.Base(os.Args[0]), "muster-") {
		program() // on a host of a test, where ssh has brought it
	}
	testscript.Main(m, map[string]func(){
		"muster": program, "torchrun": program, "dlrover-run": program, "accelerate": program,
		"deepspeed": program, "colossalai": program, "horovodrun": program, "mpirun": program,
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_GOLDEN") == "1",
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"status": statusCommand},
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_RUNTIME_DIR", env.WorkDir)
			env.Setenv(console.FormatVariable, "auto") // as people have it, whatever these tests run in
			return nil
		},
	})
}

// statusCommand is "status N program args...": it runs the program and expects exit status N.
func statusCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N program args...")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("cannot run %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if want := args[0]; strconv.Itoa(got) != want {
		ts.Fatalf("exit status %d, want %s", got, want)
	}
}

// outcome is what became of one run of the program.
type outcome struct {
	status         int
	stdout, stderr string
	elapsed        time.Duration
}

// testJob is a running muster.
type testJob struct {
	*exec.Cmd
	t          *testing.T
	out, err   testutil.Buffer
	began      time.Time
	runtimeDir string
	memory     string // where its checkpoints lie in memory
}

// jobLimit is how long a job of a test may take, compileLimit one in which PyTorch compiles: a minute on two processors
// that have nothing else to do, and four with load averages of 30.
const jobLimit, compileLimit = 3 * time.Minute, 12 * time.Minute

// start runs muster with args. Extra environment is "NAME=VALUE".
func start(t *testing.T, environ []string, args ...string) *testJob {
	t.Helper()
	return startFor(t, jobLimit, environ, args...)
}

// startFor is start for a job that may take so long. It says what the job's processes were at where that is not enough.
func startFor(t *testing.T, limit time.Duration, environ []string, args ...string) *testJob {
	t.Helper()
	j := &testJob{t: t, began: time.Now(), runtimeDir: t.TempDir(), memory: memoryDir(t)}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	j.Cmd = exec.CommandContext(ctx, "muster", args...)
	j.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Logf("after %v, PID, what, state, where in the kernel, ticks of processor time of itself and of children:\n%s",
				limit, standing(t, j.Process.Pid))
		}
		return j.Process.Kill()
	}
	j.Env = append(cleanEnviron(), "XDG_RUNTIME_DIR="+j.runtimeDir, "MUSTER_CKPT_MEMORY="+j.memory)
	if slices.Contains(args, "--warm") || slices.Contains(args, "--max-restarts") && !slices.Contains(args, "--hosts") {
		j.Env = append(j.Env, "XDG_CACHE_HOME="+t.TempDir()) // what a template learns is not for the tests of tomorrow
	}
	j.Env = append(j.Env, environ...)
	j.Stdout, j.Stderr = &j.out, &j.err
	j.WaitDelay = 10 * time.Second
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	return j
}

// memoryDir makes a directory in memory that is removed with the test.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "test-") //nolint:usetesting // temporary files lie elsewhere than memory
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// cleanEnviron is our environment without what would change a launcher's mind, with our log as JSON.
func cleanEnviron() []string {
	out := []string{console.FormatVariable + "=json"} // exact, and by node: what most tests look for
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "MUSTER_") || strings.HasPrefix(name, "PET_") || strings.HasPrefix(name, "TORCHELASTIC_") ||
			name == "OMP_NUM_THREADS" {
			continue
		}
		out = append(out, kv)
	}
	return out
}

// peerEnviron is cleanEnviron for other programs than ours, whose workers show what they are given.
func peerEnviron() []string {
	return slices.DeleteFunc(cleanEnviron(), func(kv string) bool { return strings.HasPrefix(kv, console.FormatVariable+"=") })
}

// wait returns how the run ended.
func (j *testJob) wait() outcome {
	j.t.Helper()
	err := j.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		j.t.Fatalf("cannot wait for muster: %v\n%s", err, j.err.String())
	} else if ok && exit.Exited() {
		return j.outcome(exit.ExitCode())
	} else if ok {
		return j.outcome(128 + int(exit.Sys().(syscall.WaitStatus).Signal()))
	}
	return j.outcome(0)
}

func (j *testJob) outcome(status int) outcome {
	return outcome{status, j.out.String(), forPeople(j.err.String()), time.Since(j.began)}
}

// forPeople writes the errors and reports among muster's lines of JSON as text, which is what most tests look for.
// Lines of the log stay as they are.
func forPeople(stderr string) string {
	var b strings.Builder
	for line := range strings.Lines(stderr) {
		var said struct {
			Level, Message, Hint, Command, Restarts, Logs string
			Status                                        *int
			RootCause                                     *report.Cause
			Failures                                      []report.Cause
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Level != "error" || said.Status == nil {
			b.WriteString(line)
			continue
		}
		fmt.Fprintf(&b, "muster: error: %s\n", said.Message)
		if said.Hint != "" {
			fmt.Fprintf(&b, "muster: hint: %s\n", said.Hint)
		}
		if said.RootCause == nil {
			continue
		}
		fmt.Fprintf(&b, "%s FAILED\nRoot Cause\nrestarts  : %s\nlogs      : %s\n", said.Command, said.Restarts, said.Logs)
		for _, c := range append([]report.Cause{*said.RootCause}, said.Failures...) {
			fmt.Fprintf(&b, "  host      : %s\n  rank      : %d (local_rank: %d)\n  exitcode  : %d (pid: %d) %s\n", c.Host, c.Rank,
				c.LocalRank,
				c.ExitCode, c.PID, c.Signal)
			fmt.Fprintf(&b, "  error_file: %s\n%s\n%s\n", c.ErrorFile, c.Traceback, c.Error)
			for _, text := range slices.Concat(c.Evidence, c.LastLines) {
				fmt.Fprintf(&b, "    %s\n", text)
			}
		}
	}
	return b.String()
}

// muster runs the program to its end.
func muster(t *testing.T, environ []string, args ...string) outcome {
	t.Helper()
	return start(t, environ, args...).wait()
}

// processes returns the ids of the processes whose command line holds mark, zombies excluded: they have none.
func processes(t *testing.T, mark string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(cmdline, []byte(mark)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// children returns the ids and states of the direct children of pid.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, e := range entries {
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if child, err := strconv.Atoi(e.Name()); err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			found[child] = fields[0]
		}
	}
	return found
}

// standing describes a process and what it has started, for who has to tell a job that stands still from one that is
// slow.
func standing(t *testing.T, pid int) string {
	t.Helper()
	read := func(name string) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		return strings.TrimSpace(string(text))
	}
	stat := read("stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return "" // it is gone
	}
	text := fmt.Sprintln(pid, read("comm"), fields[0], read("wchan"), fields[11:15], strings.ReplaceAll(read("cmdline"), "\x00", " "))
	for child := range children(t, pid) {
		text += standing(t, child)
	}
	return text
}

// nothingLeft fails the test unless every process marked with mark, and every file of the job, is gone soon.
func (j *testJob) nothingLeft(mark string) {
	j.t.Helper()
	testutil.Eventually(j.t, 20*time.Second, "every process of the job is gone", func() bool { return len(processes(j.t, mark)) == 0 })
	testutil.Eventually(j.t, 20*time.Second, "the run directory is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(j.runtimeDir, "muster", "job-*"))
		return len(left) == 0
	})
	testutil.Eventually(j.t, 20*time.Second, "muster and its guardian are gone", func() bool {
		return len(processes(j.t, j.runtimeDir)) == 0
	})
	if left, err := os.ReadDir(j.memory); err != nil || len(left) > 0 {
		j.t.Errorf("left in shared memory: %v, %v", left, err)
	}
}

// command runs another program, such as the real torchrun, to its end.
func command(t *testing.T, environ []string, name string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(peerEnviron(), environ...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return outcome{status: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

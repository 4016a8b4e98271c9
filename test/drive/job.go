package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// Outcome is what became of one run of the program.
type Outcome struct {
	Status         int
	Stdout, Stderr string
	Elapsed        time.Duration
}

// Job is a running muster.
type Job struct {
	*exec.Cmd
	Out, Err   testutil.Buffer
	Began      time.Time
	RuntimeDir string
	Memory     string // where its checkpoints lie in memory

	t *testing.T
}

const (
	// JobLimit is how long a job of a test may take.
	JobLimit = 3 * time.Minute
	// CompileLimit is how long one in which PyTorch compiles may take: a minute on two processors that have nothing else to
	// do, and four with load averages of 30.
	CompileLimit = 12 * time.Minute
)

// Start runs muster with args. Extra environment is "NAME=VALUE".
func Start(t *testing.T, environ []string, args ...string) *Job {
	t.Helper()
	return StartFor(t, JobLimit, environ, args...)
}

// StartFor is Start for a job that may take so long. It says what the job's processes were at where that is not enough.
func StartFor(t *testing.T, limit time.Duration, environ []string, args ...string) *Job {
	t.Helper()
	j := &Job{t: t, Began: time.Now(), RuntimeDir: t.TempDir(), Memory: MemoryDir(t)}
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
	j.Env = append(CleanEnviron(), "XDG_RUNTIME_DIR="+j.RuntimeDir, "MUSTER_CKPT_MEMORY="+j.Memory)
	if slices.Contains(args, "--warm") || slices.Contains(args, "--max-restarts") && !slices.Contains(args, "--hosts") {
		j.Env = append(j.Env, "XDG_CACHE_HOME="+t.TempDir()) // what a template learns is not for the tests of tomorrow
	}
	j.Env = append(j.Env, environ...)
	j.Stdout, j.Stderr = &j.Out, &j.Err
	j.WaitDelay = 10 * time.Second
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	return j
}

// End waits for the job and returns how the run ended.
func (j *Job) End() Outcome {
	j.t.Helper()
	err := j.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		j.t.Fatalf("cannot wait for muster: %v\n%s", err, j.Err.String())
	} else if ok && exit.Exited() {
		return j.outcome(exit.ExitCode())
	} else if ok {
		return j.outcome(128 + int(exit.Sys().(syscall.WaitStatus).Signal()))
	}
	return j.outcome(0)
}

func (j *Job) outcome(status int) Outcome {
	return Outcome{status, j.Out.String(), ForPeople(j.Err.String()), time.Since(j.Began)}
}

// Run runs the program to its end.
func Run(t *testing.T, environ []string, args ...string) Outcome {
	t.Helper()
	return Start(t, environ, args...).End()
}

// Command runs another program, such as the real torchrun, to its end.
func Command(t *testing.T, environ []string, name string, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(PeerEnviron(), environ...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return Outcome{Status: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// CommandOf is Command for a Python program in a fork of a process that has imported what it needs: args are "-c" with a
// text, or a file, and its arguments. Both streams have all that it has printed.
func CommandOf(t *testing.T, forks *testutil.Forks, environ []string, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := forks.Run(ctx, append(PeerEnviron(), environ...), args...)
	o := Outcome{Stdout: string(out), Stderr: string(out)}
	if err != nil {
		if _, other := fmt.Sscanf(err.Error(), "exit status %d", &o.Status); other != nil {
			t.Fatal(err)
		}
	}
	return o
}

// Torchrun runs the real torchrun with args, in a fork of a process that has imported it.
func Torchrun(t *testing.T, environ []string, args ...string) Outcome {
	t.Helper()
	return CommandOf(t, torchrunForks(t), environ, append([]string{"-c", "from torch.distributed.run import main; main()"}, args...)...)
}

func torchrunForks(t testing.TB) *testutil.Forks {
	t.Helper()
	return testutil.ForksOf(testutil.Torch(t), "torch.distributed.run,torch.numa.binding", "")
}

// ForkedPython is a program that runs scripts as the newest torch's Python does, in forks of the process that Torchrun
// forks from: for workers whose start is not the subject. With MUSTER_SOAK=1 it is that Python itself.
func ForkedPython(t testing.TB) string {
	t.Helper()
	if testutil.Soak() {
		return testutil.Torch(t)
	}
	return forkedProgram(t, torchrunForks(t), "python")
}

// ForkedPythonOf is such a program for any interpreter, which imports modules, given with commas between, once.
func ForkedPythonOf(t testing.TB, interpreter, modules string) string {
	t.Helper()
	if testutil.Soak() {
		return interpreter
	}
	return forkedProgram(t, testutil.ForksOf(interpreter, modules, ""), "python")
}

// ForkedTorchrun is such a program for the real torchrun.
func ForkedTorchrun(t testing.TB) string {
	t.Helper()
	if testutil.Soak() {
		return testutil.Torchrun(t)
	}
	return forkedProgram(t, torchrunForks(t), "torchrun", "-c", "from torch.distributed.run import main; main()")
}

// ForkedSomeTorch is such a program for SomeTorch.
func ForkedSomeTorch(t testing.TB) string {
	t.Helper()
	if testutil.Soak() {
		return SomeTorch(t)
	}
	return forkedProgram(t, testutil.ForksOf(SomeTorch(t), "torch.distributed", ""), "python")
}

func forkedProgram(t testing.TB, forks *testutil.Forks, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := forks.Program(path, args...); err != nil {
		t.Fatal(err)
	}
	return path
}

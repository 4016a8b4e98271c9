package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"muster/cmd/console"
	"muster/cmd/here"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/test/drive"
)

// TestMain puts this test binary on PATH as muster (and as torchrun, dlrover-run and accelerate, links users make), so
// that every test runs the whole program in processes of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == here.GuardianArg || os.Args[1] == here.SalvageArg) {
		os.Exit(run()) // muster starts these as /proc/self/exe, a name that testscript does not know
	}
	if strings.HasSuffix(os.Args[0], ".test") {
		drive.Prepare()
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

// outcome is a drive.Outcome.
type outcome struct {
	status         int
	stdout, stderr string
	elapsed        time.Duration
}

func outcomeOf(o drive.Outcome) outcome { return outcome{o.Status, o.Stdout, o.Stderr, o.Elapsed} }

// expect fails the test unless a command has ended with a status, and said certain things.
func (o outcome) expect(t *testing.T, status int, says ...string) {
	t.Helper()
	drive.Outcome{Status: o.status, Stdout: o.stdout, Stderr: o.stderr}.Expect(t, status, says...)
}

// testJob is a drive.Job.
type testJob struct {
	*drive.Job
	t          *testing.T
	out, err   *testutil.Buffer
	began      time.Time
	runtimeDir string
}

const (
	jobLimit, compileLimit = drive.JobLimit, drive.CompileLimit

	asText       = drive.AsText
	endAtOnce    = drive.EndAtOnce
	untilStopped = drive.UntilStopped
	showRank     = drive.ShowRank
)

// start runs muster with args. Extra environment is "NAME=VALUE".
func start(t *testing.T, environ []string, args ...string) *testJob {
	t.Helper()
	return startFor(t, jobLimit, environ, args...)
}

// startFor is start for a job that may take so long.
func startFor(t *testing.T, limit time.Duration, environ []string, args ...string) *testJob {
	t.Helper()
	j := drive.StartFor(t, limit, environ, args...)
	return &testJob{Job: j, t: t, out: &j.Out, err: &j.Err, began: j.Began, runtimeDir: j.RuntimeDir}
}

// wait returns how the run ended.
func (j *testJob) wait() outcome {
	j.t.Helper()
	return outcomeOf(j.End())
}

// muster runs the program to its end.
func muster(t *testing.T, environ []string, args ...string) outcome {
	t.Helper()
	return start(t, environ, args...).wait()
}

// command runs another program, such as the real torchrun, to its end.
func command(t *testing.T, environ []string, name string, args ...string) outcome {
	t.Helper()
	return outcomeOf(drive.Command(t, environ, name, args...))
}

// steering runs muster beside jobs with the same run directories.
func steering(t *testing.T, runtimeDir string, args ...string) outcome {
	t.Helper()
	return outcomeOf(drive.Beside(t, runtimeDir, args...))
}

// statusOf is what muster status says of a job.
func statusOf(t *testing.T, runtimeDir string, args ...string) (control.Answer, outcome) {
	t.Helper()
	a, got := drive.StatusOf(t, runtimeDir, args...)
	return a, outcomeOf(got)
}

func untilRanks(t *testing.T, runtimeDir string, n int, args ...string) control.Answer {
	t.Helper()
	return drive.UntilRanks(t, runtimeDir, n, args...)
}

func cleanEnviron() []string { return drive.CleanEnviron() }

func peerEnviron() []string { return drive.PeerEnviron() }

func freePort(t testing.TB) string { t.Helper(); return drive.FreePort(t) }

func testScript(t *testing.T, path ...string) string { t.Helper(); return drive.Script(t, path...) }

func writeScript(t *testing.T, name, text string) string {
	t.Helper()
	return drive.WriteScript(t, name, text)
}

func soakMode() bool { return drive.Soak() }

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"muster/cmd/console"
	"muster/cmd/here"
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

// muster runs the program in this process: what it refuses, shows or completes, and starts nothing for.
func muster(t *testing.T, environ []string, args ...string) drive.Outcome {
	t.Helper()
	dir := t.TempDir()
	stream := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	text := func(f *os.File) string {
		text, err := os.ReadFile(f.Name())
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	stdin, stdout, stderr := stream("in"), stream("out"), stream("err")
	a := newApp(slices.Concat(drive.CleanEnviron(), []string{"XDG_RUNTIME_DIR=" + dir}, environ), stdin, stdout, stderr)
	a.argv = append([]string{"muster"}, args...)
	status := a.run()
	_ = stdin.Close()
	return drive.Outcome{Status: status, Stdout: text(stdout), Stderr: drive.ForPeople(text(stderr))}
}

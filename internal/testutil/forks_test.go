package testutil_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestForks runs scripts in forks: each sees its own environment, arguments and modules, and ends as Python would. The
// modules of the fork server are imported once.
func TestForks(t *testing.T) {
	python := anyPython(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("shared.py", "import os\nprint('imported', file=open(os.environ['ONCE'], 'a'))\n")
	once := filepath.Join(dir, "once")
	t.Setenv("ONCE", once)
	script := write("script.py", `import os, sys, shared, beside
if __name__ == "__main__":
    print(sys.argv[1:], os.environ.get("ONCE"), os.environ["MINE"], beside.value, sys.path[0] == os.path.dirname(sys.argv[0]))
    sys.stdout.flush()
    print("to the other stream", file=sys.stderr)
    sys.exit(int(os.environ["MINE"]))
`)
	write("beside.py", "value = 'beside'\n")
	forks := testutil.ForksOf(python, "shared", dir)
	for _, status := range []string{"0", "3"} {
		out, err := forks.Run(t.Context(), []string{"MINE=" + status}, script, "a", "b c")
		want := "['a', 'b c'] None " + status + " beside True\nto the other stream\n"
		if got := string(out); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		if got := ""; status == "3" {
			if err != nil {
				got = err.Error()
			}
			if got != "exit status 3" {
				t.Errorf("ended with %q", got)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
	if out, err := forks.Run(t.Context(), nil, "-W", "error::UserWarning", "-c", "import warnings; warnings.warn('x')"); err == nil ||
		!strings.Contains(string(out), "UserWarning: x") {
		t.Errorf("a warning was no error: %s", out)
	}
	if _, err := forks.Run(t.Context(), nil, "-c", "import os; os.kill(os.getpid(), 9)"); err == nil || err.Error() != "exit status 137" {
		t.Errorf("killed by itself: %v", err)
	}
	more := filepath.Join(dir, "more")
	if err := os.Mkdir(more, 0o700); err != nil {
		t.Fatal(err)
	}
	write("more/further.py", "import shared\nprint('further', file=open(shared.os.environ['ONCE'], 'a'))\n")
	for range 2 {
		out, err := forks.With("further", more).Run(t.Context(), []string{"PYTHONPATH=" + more, "ONCE=mine"}, "-c",
			"import further, os, sys; print(sys.path[:2], *sorted(os.environ), sys.stdin.read())")
		if want := "['', '" + more + "'] ONCE PYTHONPATH \n"; err != nil || string(out) != want {
			t.Errorf("printed %q, %v; want %q", out, err, want)
		}
	}
	if _, err := forks.With("absent", "").Run(t.Context(), nil, "-c", ""); err == nil {
		t.Error("a script without its modules")
	}
	if text, err := os.ReadFile(once); err != nil || string(text) != "imported\nfurther\n" {
		t.Errorf("what is shared was imported: %q, %v", text, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	pid := filepath.Join(dir, "pid")
	done := make(chan error)
	go func() {
		_, err := forks.Run(ctx, nil, "-c", "import os, sys, time; open(sys.argv[1], 'w').write('%d' % os.getpid()); time.sleep(600)", pid)
		done <- err
	}()
	var text []byte
	testutil.Eventually(t, time.Minute, "a script runs", func() bool { text, _ = os.ReadFile(pid); return len(text) > 0 })
	cancel()
	if err := <-done; err == nil {
		t.Error("a script that was given up has ended well")
	}
	testutil.Eventually(t, time.Minute, "it is killed", func() bool {
		_, err := os.Stat("/proc/" + string(text))
		return os.IsNotExist(err)
	})
}

// anyPython is the python3 of PATH, for what needs no package.
func anyPython(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		testutil.Missing(t, "python3")
	}
	return python
}

// TestForksEnd: a script ends as with Python, whether what it has is freed or not: its threads have ended, what it wants done
// at the end is done, and all that it has printed is there.
func TestForksEnd(t *testing.T) {
	t.Parallel()
	python := anyPython(t)
	const script = `import atexit, sys, threading, time
atexit.register(print, "at the end")
def wait(): time.sleep(0.1); print("a thread")
threading.Thread(target=wait).start()
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
exec(sys.argv[1])
`
	for last, want := range map[string]struct{ out, err string }{
		"pass":             {"", ""},
		"sys.exit()":       {"", ""},
		"sys.exit(4)":      {"", "exit status 4"},
		"sys.exit('why')":  {"why\n", "exit status 1"},
		"raise ValueError": {"ValueError\n", "exit status 1"},
	} {
		out, err := testutil.ForksOf(python, "json", "").Run(t.Context(), nil, "-c", script, last)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want.err || !strings.Contains(string(out), want.out) || !strings.Contains(string(out), "a thread\n") ||
			!strings.HasSuffix(string(out), "at the end\n") {
			t.Errorf("%s: %q, printed %q", last, got, out)
		}
	}
}

// TestForksProgram starts a program that is such a fork: its arguments, directory, environment, output and status are
// those of one that Python runs, and whoever kills it kills the script.
func TestForksProgram(t *testing.T) {
	t.Parallel()
	python := anyPython(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "told.py"), []byte(`import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ["SET"], "shared" in sys.modules, flush=True)
os.write(2, b"error")
sys.exit(7)
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shared.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := testutil.ForksOf(python, "shared", dir).Program(program, "-u", "-m"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "told", "a b", `"c"`)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SET=here")
	out, err := cmd.CombinedOutput()
	if want := "__main__ ['a b', '\"c\"'] " + dir + " here True\nerror"; string(out) != want || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v, %q, want %q", err, out, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(filepath.Join(dir, "sleeps.py"), []byte("import os, time; print(os.getpid(), flush=True); time.sleep(600)\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := testutil.ForksOf(python, "shared", dir).Program(long, "-m", "sleeps"); err != nil {
		t.Fatal(err)
	}
	var told testutil.Buffer
	cmd = exec.CommandContext(ctx, long)
	cmd.Dir, cmd.Stdout = dir, &told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "the script runs", func() bool { return strings.HasSuffix(told.String(), "\n") })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "it is killed", func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(told.String()))
		return os.IsNotExist(err)
	})
	_ = cmd.Wait()
}

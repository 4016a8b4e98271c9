package python_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/python"
)

// hooked runs a program in a Python that answers to StacksSignal, and returns what it says.
func hooked(t *testing.T, program string, env ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hook")
	if err := python.InstallStacks(dir); err != nil {
		t.Fatal(err)
	}
	next := t.TempDir()
	if err := os.WriteFile(filepath.Join(next, "theirs.py"), []byte("pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", program)
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+dir, "NEXT="+next), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// own finds the file in memory of the process pid.
const own = `
import os, signal, sys, time
def own(pid=None):
    pid = pid or os.getpid()
    for name in os.listdir("/proc/%d/fd" % pid):
        try:
            if os.readlink("/proc/%d/fd/%s" % (pid, name)) == "/memfd:muster-stacks-%d (deleted)" % pid:
                return "/proc/%d/fd/%s" % (pid, name)
        except OSError:
            pass
def stacks(pid=None):
    os.kill(pid or os.getpid(), 57)
    for _ in range(3000):
        text = open(own(pid)).read()
        if "in <module>\n" in text:  # it is written piece by piece
            return text
        time.sleep(0.01)
`

// Each process writes to a file of its own, those that it forks, too; the script's signals and files are as they were.
func TestStacksAreWritten(t *testing.T) {
	t.Parallel()
	got := hooked(t, own+`
assert sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4] == [0, 1, 2, 3], "a low descriptor is taken"
assert "sitecustomize" not in sys.modules or "hook" not in (sys.modules["sitecustomize"].__file__ or "")
def here():
    print("mine" if "in here" in stacks() else "nothing")
here()
parent, (ready, begun) = os.getpid(), os.pipe()
child = os.fork()
if child == 0:
    os.write(begun, b"x")
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(0)
os.read(ready, 1)
assert own(child) and own(child) != own(), "a child has its own"
before = os.stat(own()).st_size
print("child" if "in <module>" in stacks(child) else "nothing")
assert os.stat(own()).st_size == before
os.kill(child, 9)
os.wait()
`)
	if got != "mine\nchild\n" {
		t.Errorf("%q", got)
	}
}

// Another program in its place does not answer, nor does one that is told not to, or has a handler of its own already.
func TestStacksAreNotWritten(t *testing.T) {
	t.Parallel()
	got := hooked(t, `
import os, signal
print(signal.getsignal(57) == signal.SIG_DFL, any("muster-stacks" in os.readlink("/proc/self/fd/" + n)
      for n in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + n)))
`, "MUSTER_STACKS=off")
	if got != "True False\n" {
		t.Errorf("off: %q", got)
	}
	got = hooked(t, own+`
os.execvp("sh", ["sh", "-c", "ls -l /proc/$$/fd 2>/dev/null | grep -c muster-stacks; grep SigCgt /proc/$$/status"])
`)
	if !strings.HasPrefix(got, "0\n") || strings.Contains(got, "SigCgt:\t01") {
		t.Errorf("another program: %q", got)
	}
}

// The script's own use of faulthandler and of the standard error stays what it is.
func TestStacksBesideFaulthandler(t *testing.T) {
	t.Parallel()
	got := hooked(t, own+`
import faulthandler, tempfile
assert not faulthandler.is_enabled()
with tempfile.TemporaryFile("w+") as f:
    faulthandler.register(signal.SIGUSR1, file=f)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.2)
    f.seek(0)
    theirs = f.read()
ours = stacks()
print("most recent call first" in theirs, "most recent call first" in ours)
`)
	if got != "True True\n" {
		t.Errorf("%q", got)
	}
}

// What Python would have imported in its place is imported.
func TestStacksMakePlace(t *testing.T) {
	t.Parallel()
	dir, next := filepath.Join(t.TempDir(), "hook"), t.TempDir()
	if err := python.InstallStacks(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(next, "sitecustomize.py"), []byte("print('theirs')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir + ":" + next, next + ":" + dir} {
		cmd := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print(sys.modules['sitecustomize'].__file__, sys.path[1:3])")
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+path)
		out, err := cmd.CombinedOutput()
		if want := "theirs\n" + next + "/sitecustomize.py ['" + strings.Replace(path, ":", "', '", 1) + "']\n"; err != nil ||
			string(out) != want {
			t.Errorf("%v\n%s\nwant %s", err, out, want)
		}
	}
}

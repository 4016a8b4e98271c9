package gather

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// lookedAt is a Python that does not answer itself, with a py-spy on its PATH or none, after a look.
func lookedAt(t *testing.T, path string, native bool) (l *look, pid int) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := started(t, []string{"PATH=" + path, "READY=" + ready}, "python3", "-S", "-c", `
import os, threading, time
def second():
    time.sleep(3600)
def first():
    open(os.environ["READY"], "w").close()
    time.sleep(3600)
threading.Thread(target=second, daemon=True).start()
first()`)
	testutil.Eventually(t, time.Minute, "the program runs", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	n := Look(t.Context(), "here", []Worker{{Rank: 0, PID: cmd.Process.Pid}}, Options{Native: native})
	if len(n.Ranks) != 1 || len(n.Ranks[0].Processes) != 1 {
		t.Fatalf("%+v", n)
	}
	return &look{to: &n.Ranks[0].Processes[0]}, cmd.Process.Pid
}

// fake is a directory with a py-spy that does what a shell's text says.
func fake(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "py-spy"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The real py-spy has the stacks of a Python that does not answer, and native frames of it; it lives on.
func TestPySpy(t *testing.T) {
	t.Parallel()
	dir := testutil.Peer(t, "py-spy")
	for _, native := range []bool{false, true} {
		testutil.Eventually(t, time.Minute, "py-spy has time enough", func() bool {
			l, pid := lookedAt(t, dir+":/bin:/usr/bin", native)
			if len(l.to.Stacks) == 0 || native && len(l.to.Native) == 0 {
				if !strings.Contains(l.to.NoStacks, "has said nothing within") && !strings.Contains(l.to.NoStacks, "had no time left") {
					t.Errorf("%+v", l.to)
				}
				return false // a machine with too much to do
			}
			if len(l.to.Stacks) != 2 || l.to.Stacks[0].Own().Func != "first" || l.to.Stacks[1].Own().Func != "second" {
				t.Errorf("%+v", l.to.Stacks)
			}
			if native {
				inner := l.to.Native[0].Frames
				if f := inner[len(inner)-1]; !strings.Contains(f.File, "libc") {
					t.Errorf("%+v", inner)
				}
			}
			if err := syscall.Kill(pid, 0); err != nil {
				t.Error(err)
			}
			return true
		})
	}
}

// A py-spy that is not there, of another version, that hangs, crashes or writes nonsense is told, and the look ends in
// time.
func TestPySpyThatIsNone(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	const right = `[ "$1" = --version ] && { echo py-spy 0.4.3; exit; }; `
	for path, says := range map[string]string{
		t.TempDir():                              "which would tell more; --stacks on at the start of the job has Python tell them",
		fake(t, "echo py-spy 0.3.14"):            `py-spy is version "0.3.14", and only 0.4.x is used`,
		fake(t, right+"sleep 3600"):              "py-spy has said nothing within ",
		fake(t, right+"exec yes"):                "py-spy says more than ",
		fake(t, right+"echo no JSON"):            "py-spy does not say what is known of it",
		fake(t, right+"echo denied >&2; exit 1"): `py-spy says nothing but "denied"`,
	} {
		l, _ := lookedAt(t, path+":/bin:/usr/bin", false)
		if len(l.to.Stacks) != 0 || !strings.HasPrefix(l.to.NoStacks, "it is no Python that answers; ") ||
			!strings.Contains(l.to.NoStacks, says) {
			if !strings.Contains(l.to.NoStacks, "had no time left") { // a machine with too much to do
				t.Errorf("want %q: %q", says, l.to.NoStacks)
			}
		}
	}
}

// Where the kernel keeps back what a file system does not give, nobody waits for it.
func TestRisky(t *testing.T) {
	ctx, release := t.Context(), make(chan struct{})
	if !risky(ctx, func() {}) {
		t.Error("what returns at once has returned")
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for range mostStuck + 1 {
		if risky(short, func() { <-release }) {
			t.Error("what waits has not returned")
		}
	}
	close(release)
	testutil.Eventually(t, time.Minute, "they end", func() bool { return stuck.Load() == 0 })
}

// What control groups are called, and what they have counted, is read in both versions.
func TestThrottled(t *testing.T) {
	t.Parallel()
	got := cpuGroups("4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/u\nnonsense\n")
	want := "/sys/fs/cgroup/cpu,cpuacct/a/b /sys/fs/cgroup/cpu/a/b /sys/fs/cgroup/u /sys/fs/cgroup/unified/u"
	if strings.Join(got, " ") != want {
		t.Errorf("%q", got)
	}
	for text, want := range map[string]nanoseconds{
		"usage_usec 5\nnr_throttled 2\nthrottled_usec 7\n": 7000, "nr_throttled 1\nthrottled_time 9\n": 9, "throttled_time x\n": 0, "": 0,
	} {
		if got := throttledIn(text); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// The head of the loop around a line is the one that it is in.
func TestLoopAround(t *testing.T) {
	t.Parallel()
	lines := strings.Split("def f():\n    while not done():\n        # once more\n        if x:\n            sleep(1)\n    sleep(2)\n"+
		"while True:\n    sleep(3)\nsleep(4)", "\n")
	for number, want := range map[int]string{5: "while not done()", 6: "", 8: "", 9: "", 0: "", 99: ""} {
		if got := loopAround(lines, number); got != want {
			t.Errorf("line %d: %q", number, got)
		}
	}
}

package gather

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/proc"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/launch/evidence"
)

func started(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd
}

// Of Python that answers there are stacks, of all else what the kernel tells; nobody is harmed by ten looks.
func TestLook(t *testing.T) {
	testutil.Long(t)
	dir, ready := filepath.Join(t.TempDir(), "hook"), filepath.Join(t.TempDir(), "ready")
	if err := python.InstallStacks(dir); err != nil {
		t.Fatal(err)
	}
	hooked := []string{"PYTHONPATH=" + dir, "PYTHONDONTWRITEBYTECODE=1", "READY=" + ready}
	const program = `
import os, threading, time, subprocess
def second():
    time.sleep(3600)
def first():
    time.sleep(3600)
threading.Thread(target=second, daemon=True).start()
child = subprocess.Popen(["sleep", "3600"])
open(os.environ["READY"], "w").close()
first()
`
	py := started(t, hooked, "python3", "-c", program)
	plain := started(t, nil, "python3", "-c", "import time; time.sleep(3600)")
	sh := started(t, nil, "sleep", "3600")
	loop := started(t, nil, "sh", "-c", "while :; do :; done")
	stopped := started(t, hooked, "python3", "-c", "import os; os.kill(os.getpid(), 19)")
	testutil.Eventually(t, time.Minute, "the programs run", func() bool {
		_, err := os.Stat(ready)
		state := count("/proc/" + strconv.Itoa(stopped.Process.Pid)).state
		return err == nil && state == "T"
	})
	var workers []Worker
	for i, cmd := range []*exec.Cmd{py, plain, sh, loop, stopped} {
		workers = append(workers, Worker{Rank: i, PID: cmd.Process.Pid, Silent: -1})
	}
	workers = append(workers, Worker{Rank: 5, PID: 1 << 22})
	var n evidence.Node
	for range 10 {
		if n = Look(t.Context(), "here", workers, Options{}); len(n.Ranks) != 6 || len(n.Notes) != 0 {
			t.Fatalf("%+v", n)
		}
		main := n.Ranks[0].Main()
		if main == nil || len(main.Stacks) != 2 || main.Stacks[0].Own().Func != "first" || main.Stacks[1].Own().Func != "second" ||
			main.Threads[0].Syscall != "clock_nanosleep" && main.Threads[0].Syscall != "select" && main.Threads[0].Syscall != "pselect6" {
			t.Fatalf("%+v", main)
		}
	}
	if p := n.Ranks[0].Processes; len(p) != 2 || p[1].Name != "sleep" || len(p[1].Stacks) != 0 || p[1].State != "S" {
		t.Errorf("%+v", p)
	}
	for rank, want := range map[int]string{
		1: "no Python that answers", 2: "no Python that answers", 3: "no Python that answers",
		4: "it is stopped",
	} {
		if p := n.Ranks[rank].Main(); p == nil || len(p.Stacks) != 0 || !strings.Contains(p.NoStacks, want) {
			t.Errorf("rank %d: %+v", rank, p)
		}
	}
	if p := n.Ranks[3].Main(); p.Wants < 0.5 {
		t.Errorf("a loop wants %.2f of a core", p.Wants)
	}
	if p := n.Ranks[4].Main(); p.State != "T" || !p.Steady {
		t.Errorf("%+v", p)
	}
	if !n.Ranks[5].Ended {
		t.Errorf("%+v", n.Ranks[5])
	}
	for i, w := range workers[:5] {
		if err := syscall.Kill(w.PID, 0); err != nil {
			t.Errorf("rank %d is gone: %v", i, err)
		}
	}
}

// Whatever stands in a dump, stacks of it are read, the main thread first and its innermost frame last.
func TestParse(t *testing.T) {
	got := parse(`Thread 0x01 [pt"x] (most recent call first):
  File "/a b/", line 1 in evil.py", line 12 in f
  File "no line
Current thread 0x02 (most recent call first):
  File "t.py", line 3 in inner
  File "t.py", line 9 in <module>
  File "t.py", line x in y
`)
	want := []evidence.Stack{
		{Thread: "0x02", Frames: []evidence.Frame{{Func: "<module>", File: "t.py", Line: 9}, {Func: "inner", File: "t.py", Line: 3}}},
		{Thread: `0x01 [pt"x]`, Frames: []evidence.Frame{{Func: "f", File: `/a b/", line 1 in evil.py`, Line: 12}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{
		"", "  File \"x\", line 1 in y\n", "\x00\xff",
		strings.Repeat("Thread 1 (most recent call first):\n", 10),
	} {
		parse(text)
	}
	if s := parse("Current thread 1 (most recent call first):\n  Garbage-collecting\n  File \"t.py\", line 3 in f\n"); len(s) != 1 ||
		!s[0].Collecting || len(s[0].Frames) != 1 {
		t.Errorf("%+v", s)
	}
}

// Connections are read as the kernel prints them.
func TestParseSocket(t *testing.T) {
	inode, s, is := parseSocket("   0: 0100007F:1F90 0200007F:ABCD 01 00000040:00000002 01:00000014 00000003  1000        0 4711 1 0")
	if want := (evidence.Socket{
		Local: "127.0.0.1:8080", Peer: "127.0.0.2:43981", State: "established", Send: 64, Receive: 2, Retransmits: 3,
	}); littleEndian && (!is || inode != 4711 || s != want) {
		t.Errorf("%v %d %+v", is, inode, s)
	}
	for _, line := range []string{"", "sl local rem st", "0: x y 01 0:0 0 0 0 0 1", "0: 00:1 00:1 01 0:0 0:0 0 0 0 1"} {
		if _, _, is := parseSocket(line); is {
			t.Errorf("%q is no connection", line)
		}
	}
}

// Listening finds the ports of a process, and of what it has started, and no connections.
func TestListening(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	const program = `
import os, socket, sys, time
def listen(family, address):
    s = socket.socket(family)
    s.bind((address, 0))
    s.listen()
    return s, s.getsockname()[1]
four, port4 = listen(socket.AF_INET, "127.0.0.1")
client = socket.create_connection(("127.0.0.1", port4))
if os.fork() == 0:
    four.close()
    other, port = listen(socket.AF_INET, "0.0.0.0")
    with open(sys.argv[1] + ".part", "w") as f:
        f.write("%d %d" % (port4, port))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(3600)
`
	cmd := started(t, nil, "python3", "-c", program, ready)
	var text []byte
	testutil.Eventually(t, time.Minute, "both listen", func() bool {
		var err error
		text, err = os.ReadFile(ready)
		return err == nil
	})
	trees, err := proc.TreesOf([]int{cmd.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	own, below, _ := strings.Cut(string(text), " ")
	got := map[string]bool{}
	for _, at := range Listening(trees[cmd.Process.Pid]) {
		got[at.String()] = true
	}
	if !reflect.DeepEqual(got, map[string]bool{"127.0.0.1:" + own: true, "0.0.0.0:" + below: true}) {
		t.Errorf("%v, want %s of the process and %s of its child", got, own, below)
	}
	if got := Listening(nil); len(got) > 0 {
		t.Errorf("nobody listens at %v", got)
	}
}

// A thread that is in line for a core all the time has had no time in line counted yet.
func TestWanted(t *testing.T) {
	const ms = 1_000_000
	for name, c := range map[string]struct {
		before, now counted
		want        float64
	}{
		"in line since before": {counted{"R", 5 * ms, 7 * ms, 3}, counted{"R", 7 * ms, 7 * ms, 3}, 1},
		"on a core":            {counted{"R", 0, 0, 3}, counted{"R", 100 * ms, 0, 3}, 1},
		"slept in between":     {counted{"R", 0, 0, 3}, counted{"R", 10 * ms, 15 * ms, 4}, 0.25},
		"woke up":              {counted{"S", 0, 0, 3}, counted{"R", 10 * ms, 15 * ms, 3}, 0.25},
		"sleeps":               {counted{"S", 0, 0, 3}, counted{"S", 0, 0, 3}, 0},
		"a counter went back":  {counted{"S", 9, 9, 3}, counted{"S", 0, 0, 3}, 0},
	} {
		if got := c.now.wanted(c.before, 0.1); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

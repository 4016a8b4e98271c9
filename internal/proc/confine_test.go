package proc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
)

func shell(script string) proc.Confinement {
	return proc.Confinement{
		Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin"},
		Deadline: 20 * time.Second, Grace: time.Second, MaxStdout: 1000, MaxStderr: 100,
	}
}

func confine(t *testing.T, c proc.Confinement) proc.Confined {
	t.Helper()
	r, err := proc.Confine(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestConfineTakesOutputAndStatus(t *testing.T) {
	started := 0
	c := shell(`read line; echo "out $line"; echo err >&2; exit 7`)
	c.Started = func() { started++ }
	r := confine(t, c)
	if string(r.Stdout) != "out \n" || string(r.Stderr) != "err\n" || r.Exit.Code != 7 || started != 1 || r.TimedOut || r.Flooded ||
		r.Abandoned != nil {
		t.Errorf("%+v, started %d times", r, started)
	}
	if r := confine(t, shell("kill -SEGV $$")); r.Exit.Signal != unix.SIGSEGV {
		t.Errorf("%+v", r)
	}
}

func TestConfineLimitsOutput(t *testing.T) {
	r := confine(t, shell("exec yes"))
	if !r.Flooded || len(r.Stdout) != 1000 || r.Exit.Signal != unix.SIGKILL {
		t.Errorf("flooded %v, %d bytes, %v", r.Flooded, len(r.Stdout), r.Exit)
	}
	// Exactly as much as is allowed, and one more.
	if r := confine(t, shell("head -c 1000 /dev/zero")); r.Flooded || len(r.Stdout) != 1000 {
		t.Errorf("flooded %v, %d bytes", r.Flooded, len(r.Stdout))
	}
	if r := confine(t, shell("head -c 1001 /dev/zero")); !r.Flooded || len(r.Stdout) != 1000 {
		t.Errorf("flooded %v, %d bytes", r.Flooded, len(r.Stdout))
	}
	if r := confine(t, shell("head -c 300000 /dev/zero >&2; echo done")); r.Flooded || len(r.Stderr) != 100 ||
		string(r.Stdout) != "done\n" {
		t.Errorf("flooded %v, %d bytes of complaints, %q", r.Flooded, len(r.Stderr), r.Stdout)
	}
}

// TestConfineLines: a program that goes on saying something runs on beyond its deadline, which begins anew with each line.
func TestConfineLines(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	var lines []string
	take := func(line []byte) { lines = append(lines, string(line)) }
	c := shell("for i in 1 2 3 4; do echo line $i; sleep 1; done; printf rest")
	c.Deadline, c.Line = 3*time.Second, take
	r := confine(t, c)
	if r.TimedOut || !r.Exit.Success() || strings.Join(lines, ",") != "line 1,line 2,line 3,line 4" || string(r.Stdout) != "rest" {
		t.Errorf("timed out %v, %v, lines %q and %q", r.TimedOut, r.Exit, lines, r.Stdout)
	}
	lines = nil
	c = shell("echo once; sleep 60")
	c.Deadline, c.Line = time.Second, take
	if r := confine(t, c); !r.TimedOut || len(lines) != 1 {
		t.Errorf("one that falls silent: timed out %v, lines %q", r.TimedOut, lines)
	}
	c = shell("yes | tr -d '\\n'")
	c.Line = take
	if r := confine(t, c); !r.Flooded {
		t.Errorf("a line without an end: %+v", r)
	}
}

func TestConfineKillsAtTheDeadline(t *testing.T) {
	c := shell(`trap "" TERM INT HUP; echo begun; while :; do sleep 1; done`)
	c.Deadline = 300 * time.Millisecond
	r := confine(t, c)
	if !r.TimedOut || r.Exit.Signal != unix.SIGKILL || string(r.Stdout) != "begun\n" || r.Abandoned != nil {
		t.Errorf("%+v", r)
	}
}

// Something that the program started, and that holds its pipes, delays nobody and does not outlive it in its group.
func TestConfineSweepsItsGroup(t *testing.T) {
	r := confine(t, shell("sleep 1000 & echo $!"))
	var pid int
	if _, err := fmt.Sscan(string(r.Stdout), &pid); err != nil || r.Exit.Code != 0 {
		t.Fatalf("%+v: %v", r, err)
	}
	// It comes to this process, a sub-reaper.
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || ws.Signal() != unix.SIGKILL {
		t.Errorf("%v, %v", ws, err)
	}
	begin := time.Now()
	r = confine(t, shell("setsid sleep 1000 & sleep 0.2; echo $!"))
	if took := time.Since(begin); took > 10*time.Second || r.Exit.Code != 0 {
		t.Errorf("took %v, %+v", took, r)
	}
	if _, err := fmt.Sscan(string(r.Stdout), &pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Errorf("what has left the group was killed: %v", err)
	}
	_, _ = unix.Wait4(pid, nil, 0, nil)
}

func TestConfineIsCanceled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	r, err := proc.Confine(ctx, shell("exec sleep 1000"))
	if err != nil || !r.Canceled || r.Exit.Signal != unix.SIGKILL {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestConfineCannotExecute(t *testing.T) {
	c := shell("")
	c.Path = "/nonexistent"
	if _, err := proc.Confine(t.Context(), c); !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v", err)
	}
}

// A process that SIGKILL does not end is left behind, and taken care of when it does end.
func TestConfineAbandons(t *testing.T) {
	restore := proc.SpareConfined()
	c := shell("echo begun; exec sleep 1000")
	c.Deadline, c.Grace = 300*time.Millisecond, 100*time.Millisecond
	begin := time.Now()
	r := confine(t, c)
	restore()
	if r.Abandoned == nil || r.Abandoned.State != "S" || !r.TimedOut || string(r.Stdout) != "begun\n" {
		t.Errorf("%+v", r)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if err := unix.Kill(r.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// goleak sees to it that its goroutine ends.
	for unix.Kill(r.PID, 0) == nil {
		time.Sleep(5 * time.Millisecond) // the pace of polling; the test's own time limit bounds it
	}
}

// A process hangs where one of its threads does: the parent of a vfork does so until its child has opened the pipe.
func TestConfineAbandonsThread(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", `
import os, sys, threading, time
opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
threading.Thread(target=os.posix_spawn, args=("/bin/true", ["true"], {}), kwargs={"file_actions": opens}).start()
time.sleep(1000)`, pipe)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	testutil.Eventually(t, time.Minute, "a thread hangs", func() bool { return proc.Whereabouts(cmd.Process.Pid).State == "D" })
	unblock, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unblock.Close() }()
	testutil.Eventually(t, time.Minute, "it goes on", func() bool { return proc.Whereabouts(cmd.Process.Pid).State == "S" })
}

// The confined program dies with this process, however that dies.
func TestConfinedDiesWithUs(t *testing.T) {
	cmd := exec.Command(os.Args[0], roleArg, "confine")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || ws.Signal() != unix.SIGKILL {
		t.Errorf("%v, %v", ws, err)
	}
}

// confineForever is the process of TestConfinedDiesWithUs: it says who is confined.
func confineForever() int {
	c := shell("echo $$ >/proc/$PPID/fd/1; exec sleep 1000")
	c.Deadline = time.Hour
	_, err := proc.Confine(context.Background(), c)
	fmt.Fprintln(os.Stderr, err)
	return 1
}

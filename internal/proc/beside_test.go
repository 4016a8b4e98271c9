package proc_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
)

func beside(t *testing.T, tree *proc.Tree, script string, args ...string) *proc.Process {
	t.Helper()
	p, err := tree.StartBeside(proc.Spec{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", script}, args...), Env: os.Environ(), Label: "sidecar 0",
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The end of all workers leaves what runs beside them alone, with its orphans; its own end leaves nothing of it, and
// the workers that run.
func TestBeside(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark, ended, worker := newMark(), newMark(), newMark()
	b := beside(t, tree, `(sleep 86400 $0 &) ; setsid sleep 86400 $0 & sleep 86400 $0 & wait`, mark)
	w := sh(t, tree, "sleep 86400 $0 & wait", worker)
	wantMarked(t, mark, 4)
	wantMarked(t, worker, 2)
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}, w); err != nil {
		t.Fatal(err)
	}
	if got := withMark(t, mark); len(got) != 4 {
		t.Errorf("after the end of the workers %v are left of what runs beside them, want 4", got)
	}
	other := sh(t, tree, "sleep 86400 $0 & wait", worker)
	wantMarked(t, worker, 2)
	if err := tree.StopBeside(t.Context(), proc.Ladder{Grace: long}, b); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, b); e.Signal != unix.SIGTERM {
		t.Errorf("it %v, want SIGTERM", e)
	}
	if left := withMark(t, mark); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// One that has ended by itself has left something in its session.
	b = beside(t, tree, `sleep 86400 $0 & sleep 86400 $0 & exit 3`, ended)
	if e := waitExit(t, b); e.Status() != 3 {
		t.Errorf("it %v, want status 3", e)
	}
	wantMarked(t, ended, 2)
	if err := tree.StopBeside(t.Context(), proc.Ladder{}, b); err != nil {
		t.Fatal(err)
	}
	if left := withMark(t, ended); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if got := withMark(t, worker); len(got) != 2 {
		t.Errorf("%v are left of the worker that runs, want 2", got)
	}
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}, other); err != nil {
		t.Fatal(err)
	}
}

// What is deaf to SIGTERM, or stopped, is killed after the grace, or when Now is closed.
func TestBesideIsKilled(t *testing.T) {
	testutil.Long(t)
	tree := openTree(t, proc.Config{})
	deaf := newMark()
	b := beside(t, tree, `trap "" TERM; sleep 86400 $0 & while :; do sleep 0.1; done`, deaf)
	testutil.Eventually(t, 20*time.Second, "it is deaf", func() bool { return len(withMark(t, deaf)) == 2 })
	now := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(now) })
	if err := tree.StopBeside(t.Context(), proc.Ladder{Grace: long, Now: now}, b); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, b); e.Signal != unix.SIGKILL {
		t.Errorf("it %v, want SIGKILL", e)
	}
	if left := withMark(t, deaf); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b = beside(t, tree, `exec sleep 86400`)
	if err := b.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 20*time.Second, "it is stopped", b.Stopped)
	if err := tree.StopBeside(t.Context(), proc.Ladder{Grace: long}, b); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, b); e.Signal != unix.SIGTERM {
		t.Errorf("it %v, want SIGTERM: who is stopped is continued", e)
	}
}

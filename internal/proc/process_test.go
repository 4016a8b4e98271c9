package proc_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
)

func openTree(t *testing.T, cfg proc.Config) *proc.Tree {
	t.Helper()
	tree, err := proc.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Stop(t.Context(), proc.Ladder{}); err != nil {
			t.Error(err)
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree
}

func sh(t *testing.T, tree *proc.Tree, script string, args ...string) *proc.Process {
	t.Helper()
	p, err := tree.Start(proc.Spec{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", script}, args...), Env: os.Environ(), Label: "rank 0",
		Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func waitExit(t *testing.T, p *proc.Process) proc.Exit {
	t.Helper()
	select {
	case <-p.Done():
		return p.Exit()
	case <-time.After(20 * time.Second):
		t.Fatalf("process %d has not ended", p.PID())
		return proc.Exit{}
	}
}

func TestCatches(t *testing.T) {
	tree := openTree(t, proc.Config{})
	p := sh(t, tree, `trap : USR1; trap '' USR2; kill -STOP $$; exit 0`)
	testutil.Eventually(t, 20*time.Second, "the handler is there", func() bool { return p.Catches(unix.SIGUSR1) })
	for _, s := range []unix.Signal{unix.SIGUSR2, unix.SIGTERM, unix.SIGHUP} {
		if p.Catches(s) {
			t.Errorf("%s is not handled", proc.SignalName(s))
		}
	}
	_ = p.Signal(unix.SIGCONT)
	waitExit(t, p)
	if p.Catches(unix.SIGUSR1) {
		t.Error("a process that has ended handles nothing")
	}
}

func TestExit(t *testing.T) {
	tree := openTree(t, proc.Config{})
	for _, c := range []struct {
		script string
		status int
		text   string
	}{
		{"exit 0", 0, "exited with status 0"},
		{"exit 255", 255, "exited with status 255"},
		{"kill -9 $$", 137, "was killed by SIGKILL"},
		{"kill -TERM $$", 143, "was killed by SIGTERM"},
	} {
		e := waitExit(t, sh(t, tree, c.script))
		if e.Status() != c.status || e.String() != c.text || e.Success() != (c.status == 0) {
			t.Errorf("%q: status %d, %q; want %d, %q", c.script, e.Status(), e, c.status, c.text)
		}
		if e.Ended.Before(e.Started) || e.Started.IsZero() {
			t.Errorf("%q: started %v, ended %v", c.script, e.Started, e.Ended)
		}
	}
	p := sh(t, tree, "exit 3")
	waitExit(t, p)
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

// A steal-all reaper beside os/exec lost 13 % of these exit codes.
func TestOrphansAreReapedAndNoStatusIsLost(t *testing.T) {
	testutil.Long(t)
	tree := openTree(t, proc.Config{})
	const n = 300
	slots := make(chan struct{}, 16)
	got := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		p := sh(t, tree, fmt.Sprintf("(sleep 0.0%d &) ; exit %d", i%10, i%256))
		wg.Go(func() {
			got[i] = p.Exit().Status()
			<-slots
		})
	}
	wg.Wait()
	for i, status := range got {
		if status != i%256 {
			t.Errorf("process %d: status %d, want %d", i, status, i%256)
		}
	}
	testutil.Eventually(t, 20*time.Second, "all orphans reaped", func() bool {
		return children(t) == 0
	})
}

// children returns how many children this process has, in any state.
func children(t *testing.T) int {
	t.Helper()
	n := 0
	for _, p := range processes(t) {
		if p.ppid == os.Getpid() {
			n++
		}
	}
	return n
}

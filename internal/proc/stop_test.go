package proc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/testutil"
)

// wantMarked waits until n processes with mark in argv run.
func wantMarked(t *testing.T, mark string, n int) {
	t.Helper()
	testutil.Eventually(t, 20*time.Second, fmt.Sprintf("%d processes with the mark", n), func() bool {
		return len(withMark(t, mark)) == n
	})
}

// long is longer than any test may take.
const long = time.Minute

func TestStopAsksTheGroupAndContinuesTheStopped(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark := newMark()
	p := sh(t, tree, `trap 'exit 7' TERM; sleep 86400 $0 & while :; do wait; done`, mark)
	wantMarked(t, mark, 2)
	if err := p.SignalGroup(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}, p); err != nil {
		t.Fatal(err)
	}
	if got := p.Exit().Status(); got != 7 {
		t.Errorf("status %d, want 7 from the trap", got)
	}
	if left := withMark(t, mark); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStopKillsAfterGraceOrNow(t *testing.T) {
	tree := openTree(t, proc.Config{})
	now := make(chan struct{})
	close(now)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		l   proc.Ladder
	}{
		"grace over":   {t.Context(), proc.Ladder{Grace: 50 * time.Millisecond}},
		"no grace":     {t.Context(), proc.Ladder{}},
		"now":          {t.Context(), proc.Ladder{Grace: long, Now: now}},
		"context ends": {ended, proc.Ladder{Grace: long}},
	} {
		t.Run(name, func(t *testing.T) {
			mark := newMark()
			p := sh(t, tree, `trap '' TERM; sleep 86400 $0`, mark)
			wantMarked(t, mark, 2)
			if err := tree.Stop(c.ctx, c.l, p); err != nil {
				t.Fatal(err)
			}
			if got := p.Exit(); got.Signal != unix.SIGKILL {
				t.Errorf("the worker %v, want SIGKILL", got)
			}
			wantMarked(t, mark, 0)
		})
	}
}

// Python's resource_tracker ignores SIGTERM and removes the job's files when the pipe from its parent closes.
func TestStopLeavesTimeToCleanUp(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark, file := newMark(), filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := sh(t, tree, `(trap '' TERM INT; exec 9<"$1"; read x <&9; sleep 0.2; rm "$2") & exec 8>"$1"; exec sleep 86400 $0`, mark, pipe, file)
	// The worker gets to be sleep when the tracker has opened the pipe, after its trap.
	testutil.Eventually(t, 20*time.Second, "both are ready", func() bool {
		return slices.ContainsFunc(withMark(t, mark), func(p process) bool { return strings.HasPrefix(p.cmdline, "sleep ") })
	})
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long, Leftover: long}, p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was not removed: %v", err)
	}
}

func TestStopKillsLeftoversInTheEnd(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark := newMark()
	p := sh(t, tree, `(trap '' TERM; setsid sleep 86400 $0 &) ; exec sleep 86400 $0`, mark)
	wantMarked(t, mark, 2)
	start := time.Now()
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long, Leftover: 100 * time.Millisecond}, p); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > long/2 {
		t.Errorf("took %v: the leftover was given the grace of the workers", took)
	}
	if left := withMark(t, mark); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Whatever is asked to end may start something first.
func TestStopReachesWhatIsForkedMeanwhile(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark := newMark()
	p := sh(t, tree, `trap 'setsid sleep 86400 $0 & sleep 86400 $0 & (setsid sleep 86400 $0 &) ; exit 0' TERM; sleep 86400 $0 & wait`, mark)
	wantMarked(t, mark, 2)
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long, Leftover: time.Millisecond}, p); err != nil {
		t.Fatal(err)
	}
	if left := withMark(t, mark); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Each generation forks the next into a session of its own and ends: no list of processes shows more than its traces.
func TestStopCatchesAChain(t *testing.T) {
	testutil.Long(t)
	for _, cgroup := range []bool{false, true} {
		t.Run(fmt.Sprintf("cgroup %v", cgroup), func(t *testing.T) {
			tree := openTree(t, proc.Config{Cgroup: cgroup})
			file := filepath.Join(t.TempDir(), "generation")
			body := `echo $1 >"$0"; [ $1 -lt 20000 ] && setsid sh -c "$body" "$0" $(($1 + 1)) &`
			p := sh(t, tree, `body=$1; export body; setsid sh -c "$body" "$0" 0 & sleep 86400`, file, body)
			generation := func() string {
				b, _ := os.ReadFile(file)
				return strings.TrimSpace(string(b))
			}
			testutil.Eventually(t, 20*time.Second, "ten generations", func() bool { return len(generation()) > 1 })
			if err := tree.Stop(t.Context(), proc.Ladder{Kill: long / 2}, p); err != nil {
				t.Fatal(err)
			}
			last := generation()
			time.Sleep(200 * time.Millisecond) // the time in which nothing may happen
			if now := generation(); now != last {
				t.Errorf("generation %s followed %s", now, last)
			}
			t.Logf("ended at generation %s", last)
		})
	}
}

// A kernel that was told to kill a cgroup may also kill what is started in it afterwards: what a tree starts next
// lives.
func TestStartAfterKill(t *testing.T) {
	for _, cgroup := range []bool{false, true} {
		t.Run(fmt.Sprintf("cgroup %v", cgroup), func(t *testing.T) {
			tree := openTree(t, proc.Config{Cgroup: cgroup})
			for range 3 {
				p := sh(t, tree, `trap "" TERM; while :; do sleep 0.05; done`)
				if err := tree.Stop(t.Context(), proc.Ladder{Grace: time.Millisecond}, p); err != nil {
					t.Fatal(err)
				}
				next := sh(t, tree, `exit 7`)
				if exit := waitExit(t, next); exit.Status() != 7 {
					t.Fatalf("what was started after a kill ended with %d", exit.Status())
				}
			}
		})
	}
}

func TestStopOfOneAndSweep(t *testing.T) {
	tree := openTree(t, proc.Config{})
	detach := `setsid sleep 86400 $0 & (setsid sleep 86400 $0 &) ; sleep 86400 $0 & `
	keep, gone, ended := newMark(), newMark(), newMark()
	k := sh(t, tree, detach+"wait", keep)
	g := sh(t, tree, detach+"wait", gone)
	e := sh(t, tree, `sleep 86400 $0 & setsid sleep 86400 $0 & read x`, ended)
	wantMarked(t, keep, 4)
	wantMarked(t, gone, 4)
	waitExit(t, e) // its stdin is /dev/null
	tree.Scan()

	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}, g); err != nil {
		t.Fatal(err)
	}
	// The double-forked one left its worker before anybody looked: while the other worker runs, nobody can say whose it
	// is.
	if got := len(withMark(t, gone)); got > 1 {
		t.Errorf("%d processes of the stopped worker, want at most the one whose origin is unknown", got)
	}
	if got := len(withMark(t, keep)); got != 4 {
		t.Errorf("%d processes of the running worker, want 4", got)
	}
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}); err != nil {
		t.Fatal(err)
	}
	if got := withMark(t, ended); len(got) > 1 {
		t.Errorf("left by the ended worker: %v", got)
	}
	if got := len(withMark(t, keep)); got != 4 {
		t.Errorf("%d processes of the running worker after the sweep, want 4", got)
	}
	if err := k.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitExit(t, k)
	if err := tree.Stop(t.Context(), proc.Ladder{Grace: long}); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{keep, gone, ended} {
		if left := withMark(t, mark); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// sleep 100 & exec muster ...
func TestChildrenFromBeforeAreSpared(t *testing.T) {
	mark := newMark()
	before := exec.Command("/bin/sh", "-c", "sleep 86400 $0 & sleep 86400 $0", mark)
	if err := before.Start(); err != nil {
		t.Fatal(err)
	}
	wantMarked(t, mark, 3)
	tree, err := proc.Open(proc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := sh(t, tree, "sleep 86400")
	if err := tree.Stop(t.Context(), proc.Ladder{}, p); err != nil {
		t.Error(err)
	}
	if got := len(withMark(t, mark)); got != 3 {
		t.Errorf("%d processes from before are left, want 3", got)
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	for _, p := range withMark(t, mark) {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
	_ = before.Wait()
	testutil.Eventually(t, 20*time.Second, "all reaped", func() bool {
		for _, p := range processes(t) {
			if p.ppid == os.Getpid() {
				_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
			}
		}
		return children(t) == 0
	})
}

// A process in the freezer of cgroup v1 does not die, as one that waits for a dead file server.
func TestStopListsWhatCannotBeKilled(t *testing.T) {
	freezer := "/sys/fs/cgroup/freezer/muster-test-" + newMark()
	if err := os.Mkdir(freezer, 0o755); err != nil {
		t.Skipf("no freezer to make a process unkillable with: %v", err)
	}
	tree := openTree(t, proc.Config{})
	t.Cleanup(func() {
		testutil.Eventually(t, 20*time.Second, "freezer removed", func() bool { return os.Remove(freezer) == nil })
	})
	p := sh(t, tree, "exec chrt -i 0 sleep 86400")
	write := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(freezer, name), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	testutil.Eventually(t, time.Minute, "the shell is a sleep", func() bool {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID()))
		return err == nil && string(comm) == "sleep\n"
	})
	write("cgroup.procs", strconv.Itoa(p.PID()))
	write("freezer.state", "FROZEN")
	defer func() {
		write("freezer.state", "THAWED")
		<-p.Done() // it was killed, and dies as soon as it gets a processor
	}()
	testutil.Eventually(t, 20*time.Second, "frozen", func() bool {
		b, err := os.ReadFile(filepath.Join(freezer, "freezer.state"))
		return err == nil && strings.TrimSpace(string(b)) == "FROZEN"
	})
	err := tree.Stop(t.Context(), proc.Ladder{Grace: 10 * time.Millisecond, Kill: 100 * time.Millisecond}, p)
	left, ok := errors.AsType[*proc.LeftError](err)
	if !ok || len(left.Left) != 1 {
		t.Fatalf("error %v, want one process left", err)
	}
	if l := left.Left[0]; l.PID != p.PID() || l.Comm != "sleep" || l.Label != "rank 0" || l.State == 0 {
		t.Errorf("left %+v", l)
	}
	if errhint.CodeOf(err) != errhint.Internal || errhint.Of(err) == "" {
		t.Errorf("status %d, hint %q", errhint.CodeOf(err), errhint.Of(err))
	}
	t.Log(err)
	// Had it a low priority only, it would get a core to die now.
	if a, err := unix.SchedGetAttr(p.PID(), 0); err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice != 0 {
		t.Errorf("%v %+v", err, a)
	}
}

// A store with thousands of clients may have taken every descriptor when the job has to be stopped.
func TestStopWithoutDescriptors(t *testing.T) {
	tree := openTree(t, proc.Config{})
	mark := newMark()
	p := sh(t, tree, `sleep 86400 $0 & wait`, mark)
	wantMarked(t, mark, 2)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 3, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := tree.Stop(t.Context(), proc.Ladder{Grace: long, Kill: 50 * time.Millisecond}, p)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("error %v, want one that says what could not be checked", err)
	}
	if got := p.Exit(); got.Signal != unix.SIGTERM {
		t.Errorf("the worker %v", got)
	}
	wantMarked(t, mark, 0)
	if err := tree.Stop(t.Context(), proc.Ladder{}, p); err != nil {
		t.Error(err)
	}
}

// TestStopSparesTheConfined: a program that we have asked something in confinement is no worker's: the end of a round does
// not end it.
func TestStopSparesTheConfined(t *testing.T) {
	tree := openTree(t, proc.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, ended := make(chan struct{}), make(chan proc.Confined, 1)
	c := shell("sleep 86400 & echo; while :; do sleep 0.1; done")
	c.Line = func([]byte) { close(said) }
	c.Deadline = time.Hour
	go func() {
		r, _ := proc.Confine(ctx, c) // a program that cannot be started says nothing
		ended <- r
	}()
	<-said
	p := sh(t, tree, `sleep 86400`)
	if err := tree.Stop(t.Context(), proc.Ladder{}, p); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-ended:
		t.Fatalf("it was ended, too: %+v", r)
	default:
	}
	cancel()
	if r := <-ended; !r.Canceled {
		t.Errorf("%+v", r)
	}
}

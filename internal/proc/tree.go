// Package proc starts, signals, waits for and reaps processes; no other package does. A Tree is everything that the
// workers of one agent became: the workers, their children, and what left its process group, its session or its parent
// (setsid, double fork, daemon). The invariant: whatever of it was alive when Stop was called is gone when Stop returns
// nil, and when the agent is killed its guardian, a second process of the same binary, does the same.
//
// While a Tree is open the process is a sub-reaper: orphans of its workers become its children, and it reaps every
// child that it did not start itself. Starting processes by os/exec in the same process would lose their exit statuses;
// use Tree.Start. One Tree can be open at a time.
//
// Never is a process chosen by its name, and never is a pid signalled without knowing that it still is the same
// process.
package proc

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Config says what a Tree is made of.
type Config struct {
	// Log gets warnings (guardian replaced, no cgroup) and debug lines. The zero value logs nothing.
	Log zerolog.Logger
	// Marker is an entry "NAME=VALUE" that is in every worker's environment and in no other process's: not in that of a
	// later agent's workers either, whatever they share with ours. The guardian
	// kills what carries it; as PID 1 the tree tells its own orphans from others by it. Empty: no such search.
	Marker string
	// Guardian is the command of the guardian, for example {"/proc/self/exe", "_guardian"}; the program must call
	// RunGuardian. Nil: no guardian. None is started for PID 1, with whose death the kernel kills all the others.
	Guardian []string
	// GuardianOutput is the guardian's standard error, and that of what RunOnDeath names. Nil: /dev/null. Whoever reads
	// it sees its end when the guardian ends.
	GuardianOutput *os.File
	// RemoveOnDeath lists what the guardian removes after the agent was killed; see Tree.RemoveOnDeath.
	RemoveOnDeath []string
	// Cgroup tries to keep the workers in a cgroup v2 below our own, which the kernel can kill at once. Where none can
	// be made the tree works without.
	Cgroup bool
}

// Tree is the process tree of an agent. Its methods may be called by several goroutines at once.
type Tree struct {
	log      zerolog.Logger
	cfg      Config
	self     ident
	init     bool // we are PID 1: children may be processes that we did not start
	wasReap  bool // sub-reaper before Open
	noPidfd  bool // tests: as on a kernel without
	spawn    chan func()
	closing  chan struct{}
	sigchld  chan os.Signal
	rescan   chan struct{} // something was started or has ended; room for one
	wg       sync.WaitGroup
	closeErr func() error

	looking sync.Mutex // one look at a time, so that an older snapshot never overwrites what a newer one taught

	// mu is held across every start, so that the reaper never meets a child of ours that it does not know.
	mu       sync.Mutex
	live     map[int]*Process   // started and not yet reaped, the guardian among them
	past     map[int]*Process   // ended, and their session may still have members; by session id
	before   map[ident]struct{} // children we had before Open, and what they started: not ours
	seen     map[ident]*Process // what left its worker's session, and whose it was (nil: unknown)
	remove   []string
	run      []string // what the guardian is to run, nil for nothing, and for how long at most
	runLimit time.Duration
	lease    int64     // as the guardian is told
	cgroup   *cgroup   // nil: none
	guard    *guardian // nil: none wanted, or none at the moment
	leaving  bool      // Close has begun: no new guardian
	orphans  uint64    // reaped so far
	// expected counts the forks under way: until each is registered, no other process is reaped.
	expected int
	forked   chan struct{} // closed when there is none any more
}

// open guards against a second Tree: being a sub-reaper is a property of the whole process.
var open atomic.Bool

// Open makes the process a sub-reaper and starts the spawner, the reaper, the scanner and the guardian. Close ends
// them. Descriptors above 2 that this process inherited become close-on-exec: workers get what Spec.Files says and no
// more, as Python's subprocess does, and the guardian does not hold the other end of anybody's pipe.
func Open(cfg Config) (*Tree, error) {
	if !open.CompareAndSwap(false, true) {
		return nil, errors.New("cannot open a second process tree in one process")
	}
	t, err := newTree(cfg)
	if err != nil {
		open.Store(false)
		return nil, err
	}
	t.wg.Go(t.spawner)
	t.wg.Go(t.reaper)
	t.wg.Go(t.scanner)
	useCgroup := t.makeCgroup()
	if len(cfg.Guardian) > 0 && !t.init {
		err = t.startGuardian()
	}
	useCgroup()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func newTree(cfg Config) (*Tree, error) {
	t := &Tree{
		log: cfg.Log, cfg: cfg, init: os.Getpid() == 1,
		spawn: make(chan func()), closing: make(chan struct{}), rescan: make(chan struct{}, 1),
		sigchld: make(chan os.Signal, 1),
		live:    map[int]*Process{}, past: map[int]*Process{}, before: map[ident]struct{}{}, seen: map[ident]*Process{},
	}
	if link, err := os.Readlink("/proc/self"); err != nil || link != fmt.Sprint(os.Getpid()) {
		return nil, errhint.With(fmt.Errorf("cannot use /proc: /proc/self is %q, and our pid is %d", link, os.Getpid()),
			"mount the proc file system of this pid namespace (unshare: --mount-proc)")
	}
	me, err := statOf(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("cannot use /proc: %w", err)
	}
	t.self = me.ident
	if err := t.spareChildren(); err != nil {
		return nil, err
	}
	if err := t.addRemovals(cfg.RemoveOnDeath); err != nil {
		return nil, err
	}
	closeOnExec()
	var was int32
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, ptr(&was), 0, 0, 0); err == nil {
		t.wasReap = was != 0
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cannot become sub-reaper: %w", err)
	}
	t.closeErr = sync.OnceValue(t.close)
	signal.Notify(t.sigchld, unix.SIGCHLD)
	return t, nil
}

// spareChildren notes which children we have already. Mostly there are none, and the process table, whose reading would
// take a good part of the time to the first worker, is not asked.
func (t *Tree) spareChildren() error {
	if _, err := peekDead(); errors.Is(err, unix.ECHILD) {
		return nil
	}
	snap, err := readSnapshot()
	if err != nil {
		return err
	}
	for _, p := range snap.kids[os.Getpid()] {
		t.spareLocked(p, snap)
	}
	return nil
}

// Close lets the guardian go, stops reaping and removes the cgroup. It kills nothing: call Stop before, and remove the
// run directory before, while the guardian still watches. Processes that are running nevertheless are let go, with exit
// code -1. Later calls return the first one's result.
func (t *Tree) Close() error { return t.closeErr() }

func (t *Tree) close() error {
	var errs []error
	t.mu.Lock()
	t.leaving = true
	g := t.guard
	t.guard = nil
	t.mu.Unlock()
	if g != nil {
		// Nothing is left for it to do, and a stopped guardian could not hear us.
		if err := g.proc.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		<-g.proc.done
	}
	t.mu.Lock()
	close(t.closing)
	wait := slices.Collect(maps.Values(t.live))
	t.mu.Unlock()
	running := 0
	for _, p := range wait {
		select {
		case <-p.done:
		default:
			if p.role == asWorker {
				running++
			}
			if p.pidfd != nil {
				_ = p.pidfd.Close()
			}
		}
	}
	signal.Stop(t.sigchld)
	t.wg.Wait()
	if running > 0 {
		errs = append(errs, fmt.Errorf("cannot wait for %d processes that still run", running))
	}
	if t.cgroup != nil {
		errs = append(errs, t.cgroup.Close())
	}
	if !t.wasReap {
		errs = append(errs, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))
	}
	open.Store(false)
	return errors.Join(errs...)
}

// closed reports whether Close has begun.
func (t *Tree) closed() bool {
	select {
	case <-t.closing:
		return true
	default:
		return false
	}
}

// register makes child pid known; the caller has held t.mu since before it was started.
func (t *Tree) registerLocked(pid, pidfd int, label string, as role, started time.Time) *Process {
	p := &Process{
		t: t, id: ident{PID: pid}, label: label, role: as,
		poke: make(chan struct{}, 1), done: make(chan struct{}), exit: Exit{Started: started},
	}
	// The child is ours and cannot be reaped before we let go of the lock, so this is its own entry.
	if st, err := statOf(pid); err == nil {
		p.id = st.ident
	}
	if pidfd >= 0 && t.noPidfd {
		_ = syscall.Close(pidfd)
		pidfd = -1
	}
	if pidfd >= 0 {
		if err := syscall.SetNonblock(pidfd, true); err == nil {
			p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
		} else {
			_ = syscall.Close(pidfd)
		}
	}
	t.live[pid] = p
	delete(t.past, pid) // the number would not have been given out if that session had a member
	t.wg.Go(p.await)
	return p
}

// ended takes p out of the registry; its goroutine calls it after reaping.
func (t *Tree) ended(p *Process) {
	t.mu.Lock()
	if t.live[p.id.PID] == p {
		delete(t.live, p.id.PID)
		if p.role == asWorker {
			t.past[p.id.PID] = p
		}
	}
	t.mu.Unlock()
	t.nudge()
	t.reap() // the reaper stops at a dead child that has an owner
}

// reaper removes zombies that nobody owns: orphans of our workers, and as PID 1 everybody's.
func (t *Tree) reaper() {
	for {
		t.reap()
		select {
		case <-t.sigchld:
		case <-t.closing:
			return
		}
	}
}

// reap waits for dead processes that are not ours until there is none, or a dead child of ours is in front: that one belongs to its
// goroutine, which calls reap again. Looking first (WNOWAIT) is what keeps statuses from being stolen.
func (t *Tree) reap() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		pid, err := peekDead()
		if err != nil || pid == 0 {
			return
		}
		if p := t.live[pid]; p != nil {
			select {
			case p.poke <- struct{}{}:
			default:
			}
			return
		}
		if t.expected > 0 {
			return // it may be the one; whoever expects it calls again
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		t.orphans++
	}
}

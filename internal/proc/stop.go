package proc

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Ladder says how Stop goes from asking to killing.
type Ladder struct {
	// Signal is what processes are asked with. Zero: SIGTERM.
	Signal syscall.Signal
	// Grace is how long the workers themselves may take to end after Signal. Zero or less: they are not asked.
	Grace time.Duration
	// Now skips what is left of the waiting when it is closed, for example by a second SIGINT. Nil: never.
	Now <-chan struct{}
	// Leftover is how long what remains may take when all workers have ended, and have been asked: Python's
	// resource_tracker ignores SIGTERM, and removes the job's files in /dev/shm when it sees that it is alone. Zero: 2
	// s.
	Leftover time.Duration
	// Spare leaves alone what ended workers left behind, also when no other worker runs.
	Spare bool
	// Kill is how long dying may take after SIGKILL, before Stop gives up. Zero: 30 s.
	Kill time.Duration
}

// The defaults of Ladder.
const (
	DefaultLeftover = 2 * time.Second
	DefaultKill     = 30 * time.Second // giving memory back takes seconds where many wait for processors
)

// Left is a process that did not die of SIGKILL.
type Left struct {
	PID   int
	Comm  string // its name, at most 15 bytes
	State byte   // as in ps: D waits inside the kernel
	WChan string // the kernel function it waits in, "" where the kernel does not say
	Label string // the worker it descends from, "" when not known
}

// LeftError lists what Stop could not kill.
type LeftError struct {
	Left []Left
	// Forking says that orphans kept appearing, too short-lived to be caught.
	Forking bool
}

// Error names every process with its pid, state and place in the kernel.
func (e *LeftError) Error() string {
	if len(e.Left) == 0 {
		return "cannot kill the job's processes: new ones keep appearing faster than they can be found"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cannot kill %d of the job's processes:", len(e.Left))
	for i, l := range e.Left {
		if i > 0 {
			b.WriteString(";")
		}
		fmt.Fprintf(&b, " %d (%q, state %c", l.PID, l.Comm, l.State)
		if l.WChan != "" {
			fmt.Fprintf(&b, " in %s", l.WChan)
		}
		if l.Label != "" {
			fmt.Fprintf(&b, ", of %s", l.Label)
		}
		b.WriteString(")")
	}
	return b.String()
}

// Stop ends procs, all that descends from them, and what ended workers left behind; when no other worker runs, all that
// is below this process. Without procs only what was left behind: running workers are not touched, and an orphan whose
// worker is not known counts as left behind only when no worker runs. They are asked with the ladder's signal, the
// workers through their process groups, what left those one by one; stopped processes are continued, since they could
// not hear it. After the waiting all are killed until none is left. The end of ctx means what Now means: Stop always
// returns within Grace + Leftover + Kill, and always kills before it gives up. A nil error says that nothing is left,
// not even a zombie; a *LeftError lists what is.
func (t *Tree) Stop(ctx context.Context, l Ladder, procs ...*Process) error {
	if l.Signal == 0 {
		l.Signal = unix.SIGTERM
	}
	if l.Leftover <= 0 {
		l.Leftover = DefaultLeftover
	}
	if l.Kill <= 0 {
		l.Kill = DefaultKill
	}
	set := make(map[*Process]bool, len(procs))
	for _, p := range procs {
		set[p] = true
	}
	s := &stopper{t: t, l: l, procs: set}
	if l.Grace > 0 {
		before := t.reaped()
		sc, err := t.look(set, l.Spare)
		if err != nil {
			t.log.Warn().Err(err).Msg("only process groups can be asked to stop")
		} else if sc.empty() { // they have ended by themselves
			if sc, restless, err := s.again(before); err == nil && sc.empty() && !restless {
				return nil
			}
		}
		s.ask(sc)
		if s.waitWorkers(ctx) && s.waitGone(ctx) {
			return nil
		}
	}
	return s.kill()
}

// stopper is one Stop under way.
type stopper struct {
	t     *Tree
	l     Ladder
	procs map[*Process]bool
}

func (s *stopper) ask(sc scope) {
	outsiders := sc.outsiders()
	for _, p := range sc.live {
		s.note(p.SignalGroup(s.l.Signal), p.id.PID)
		s.note(p.SignalGroup(unix.SIGCONT), p.id.PID)
	}
	for _, m := range outsiders {
		s.note(m.signal(s.l.Signal, false), m.PID)
		s.note(m.signal(unix.SIGCONT, false), m.PID)
	}
}

// note logs what could not be signalled. It is not an error of its own: either the process is gone, or it will be in
// the list of what is left.
func (s *stopper) note(err error, pid int) {
	if err != nil {
		s.t.log.Debug().Err(err).Int("pid", pid).Msg("signal not sent")
	}
}

// waitWorkers waits for the end of the workers and returns false when the time for it is over.
func (s *stopper) waitWorkers(ctx context.Context) bool {
	grace := time.NewTimer(s.l.Grace)
	defer grace.Stop()
	for p := range s.procs {
		select {
		case <-p.done:
		case <-grace.C:
			return false
		case <-s.l.Now:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// waitGone waits until nothing is left, and returns false when the time for leftovers is over.
func (s *stopper) waitGone(ctx context.Context) bool {
	end := time.NewTimer(s.l.Leftover)
	defer end.Stop()
	tick := newBackoff()
	defer tick.Stop()
	for {
		sc, restless, err := s.confirm()
		if err != nil || len(sc.members) == 0 && !restless {
			return err == nil
		}
		select {
		case <-tick.next():
		case <-end.C:
			return false
		case <-s.l.Now:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// confirm looks, and when it finds nothing looks again: a snapshot can miss what is forked while it is taken. A chain
// of processes, each of which forks the next and ends, can hide from any number of snapshots. But its dead come to us:
// without a member the scope is only final when no orphan was reaped meanwhile; else it is restless.
func (s *stopper) confirm() (sc scope, restless bool, err error) {
	before := s.t.reaped()
	if sc, err = s.t.look(s.procs, s.l.Spare); err != nil || len(sc.members) > 0 {
		return sc, false, err
	}
	return s.again(before)
}

// again looks once more behind a look that found nothing, before which so many orphans had been reaped.
func (s *stopper) again(before uint64) (sc scope, restless bool, err error) {
	if sc, err = s.t.look(s.procs, s.l.Spare); err != nil || len(sc.members) > 0 {
		return sc, false, err
	}
	return sc, s.t.reaped() != before, nil
}

// reaped returns how many orphans were reaped so far, those included that are dead now.
func (t *Tree) reaped() uint64 {
	t.reap()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.orphans
}

// kill sends SIGKILL until nothing is left: what is killed may have forked meanwhile.
func (s *stopper) kill() error {
	began, hindered := time.Now(), true
	end := began.Add(s.l.Kill)
	tick := newBackoff()
	defer tick.Stop()
	for {
		sc, restless, err := s.confirm()
		if err == nil && sc.empty() && !restless {
			return nil
		}
		if time.Now().After(end) {
			if err != nil { // out of descriptors, for example: the workers' groups were killed, the rest could not be seen
				return fmt.Errorf("cannot tell whether all of the job's processes are gone: %w", err)
			}
			return left(sc, restless)
		}
		s.t.killCgroup(sc.cgroup)
		outsiders := sc.outsiders()
		for _, p := range sc.live {
			s.note(p.SignalGroup(unix.SIGKILL), p.id.PID)
		}
		for _, m := range outsiders {
			s.note(m.signal(unix.SIGKILL, true), m.PID)
		}
		if hindered && time.Since(began) > s.l.Kill/30 { // most are gone by then
			hindered = false
			for _, m := range sc.members {
				ordinaryPriority(m.PID)
			}
		}
		if !restless { // what hides by forking is only caught by looking often
			<-tick.next()
		}
	}
}

func left(sc scope, restless bool) error {
	e := &LeftError{Forking: restless}
	for _, m := range sc.members {
		l := Left{PID: m.PID, Comm: m.comm, State: m.state, WChan: wchan(m.PID)}
		if m.owner != nil {
			l.Label = m.owner.label
		}
		e.Left = append(e.Left, l)
	}
	return errhint.Code(errhint.With(e,
		"a process in state D waits inside the kernel, for a file server or a driver that does not answer; "+
			"it goes when that answers, or with a reboot"), errhint.Internal)
}

// backoff paces looks at the process table: at first quickly, since most processes die at once.
type backoff struct {
	d time.Duration
	t *time.Timer
}

func newBackoff() *backoff { return &backoff{d: 500 * time.Microsecond, t: time.NewTimer(time.Hour)} }

func (b *backoff) next() <-chan time.Time {
	b.d = min(2*b.d, 25*time.Millisecond)
	b.t.Reset(b.d)
	return b.t.C
}

func (b *backoff) Stop() { b.t.Stop() }

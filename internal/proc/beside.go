package proc

import (
	"context"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StartBeside starts a process that belongs to the tree, but not to the workers: Stop leaves it alone, with all that is
// below it or has stayed in its session. StopBeside ends it. The kernel kills it when this process dies, and the
// guardian knows it; a lease does not concern it.
func (t *Tree) StartBeside(spec Spec) (*Process, error) {
	p, err := t.start(spec, asBeside)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.pushLocked()
	t.mu.Unlock()
	return p, nil
}

// StopBeside ends a process of StartBeside, what descends from it and what has stayed in its session, also where it has
// ended itself. Its process group gets the ladder's signal, and so does what has left that group. What is left after the
// ladder's Grace is killed. The end of ctx and Ladder.Now cut the Grace short. A nil error says that nothing of it is
// left.
func (t *Tree) StopBeside(ctx context.Context, l Ladder, p *Process) error {
	if l.Signal == 0 {
		l.Signal = unix.SIGTERM
	}
	if l.Kill <= 0 {
		l.Kill = DefaultKill
	}
	s := &besideStop{t: t, p: p, seen: map[ident]bool{}}
	tick := newBackoff()
	defer tick.Stop()
	found, err := s.look() // first: whose what has left the session was nobody can tell later
	if err != nil {
		t.log.Debug().Err(err).Msg("only a process group can be asked to stop")
	}
	if l.Grace > 0 {
		for _, signal := range []syscall.Signal{l.Signal, unix.SIGCONT} { // a stopped process could not hear it
			_ = p.SignalGroup(signal) // it may have ended
			for _, m := range found {
				if m.pgrp != p.id.PID {
					_ = m.signal(signal, false)
				}
			}
		}
		grace := time.NewTimer(l.Grace)
		defer grace.Stop()
		for asked := true; asked; {
			if gone, err := s.gone(); err == nil && gone {
				return nil
			}
			select {
			case <-tick.next():
			case <-grace.C:
				asked = false
			case <-l.Now:
				asked = false
			case <-ctx.Done():
				asked = false
			}
		}
	}
	for end := time.Now().Add(l.Kill); ; <-tick.next() {
		found, err := s.look()
		if err == nil && len(found) == 0 {
			if gone, err := s.gone(); err == nil && gone {
				return nil
			}
		}
		if err != nil {
			_ = p.SignalGroup(unix.SIGKILL) // it may have ended
		}
		for _, m := range found {
			_ = m.signal(unix.SIGKILL, true) // it is looked for again
		}
		if time.Now().After(end) {
			if err != nil {
				return err
			}
			var sc scope
			for _, m := range found {
				sc.members = append(sc.members, member{procInfo: m, owner: p})
			}
			return left(sc, false)
		}
	}
}

// besideStop is one StopBeside under way.
type besideStop struct {
	t    *Tree
	p    *Process
	seen map[ident]bool // what was below the process, or in its session
}

// gone reports whether the process was reaped and nothing of it is left. It looks twice: a snapshot can miss what is
// forked while it is taken.
func (s *besideStop) gone() (bool, error) {
	select {
	case <-s.p.done:
	default:
		return false, nil
	}
	for range 2 {
		if found, err := s.look(); err != nil || len(found) > 0 {
			return false, err
		}
	}
	return true, nil
}

// look finds the process, what descends from it, what is in its session, and what was seen to be so before.
func (s *besideStop) look() (found []*procInfo, err error) {
	snap, err := readSnapshot()
	if err != nil {
		return nil, err
	}
	s.t.mu.Lock()
	other := s.t.live[s.p.id.PID]
	s.t.mu.Unlock()
	leader := snap.procs[s.p.id.PID]
	// While a process is in the session the kernel gives its number to nobody else.
	if (other == nil || other == s.p) && (leader == nil || leader.ident == s.p.id) {
		for _, p := range snap.session(s.p.id.PID) {
			s.seen[p.ident] = true
		}
		for _, p := range snap.tree(s.p.id.PID) {
			s.seen[p.ident] = true
		}
	}
	var walk func(parent int, below bool)
	walk = func(parent int, below bool) {
		for _, p := range snap.kids[parent] {
			in := below || s.seen[p.ident]
			if in && (!p.dead() || p.ppid == s.t.self.PID) { // who is dead below another one goes with that one
				s.seen[p.ident] = true
				found = append(found, p)
			}
			walk(p.PID, in)
		}
	}
	walk(s.t.self.PID, false)
	return found, nil
}

// session are the members of a session.
func (s *snapshot) session(sid int) (members []*procInfo) {
	for _, p := range s.procs {
		if p.sid == sid {
			members = append(members, p)
		}
	}
	return members
}

// Stopped reports whether a signal or a debugger holds the process.
func (p *Process) Stopped() bool {
	now, err := statOf(p.id.PID)
	return err == nil && now.ident == p.id && now.held()
}

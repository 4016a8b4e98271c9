package proc

import (
	"maps"
	"slices"
	"time"
)

// member is a process of the tree in one snapshot.
type member struct {
	*procInfo
	owner  *Process // the worker it descends from; nil when that is not known
	leader bool     // it is the owner itself
}

// membersLocked finds everything below us that belongs to the job, remembers what left its worker's session, and
// forgets what is gone. A process belongs to a worker that is above it, in whose session it is, or above it when seen
// before.
func (t *Tree) membersLocked(s snapshot, past []*Process) []member {
	var all []member
	var walk func(parent int, owner *Process)
	walk = func(parent int, owner *Process) {
		for _, p := range s.kids[parent] {
			m := member{procInfo: p, owner: owner}
			if parent == t.self.PID {
				if w := t.live[p.PID]; w != nil && w.id == p.ident {
					if w.role != asWorker {
						continue
					}
					m.owner, m.leader = w, true
				} else if _, confined := theConfined.Load(p.PID); confined {
					t.spareLocked(p, s)
					continue
				} else if !t.adoptLocked(&m, s) {
					continue
				}
			} else if w := t.sessionLocked(p.sid); w != nil {
				m.owner = w
			}
			all = append(all, m)
			walk(p.PID, m.owner)
		}
	}
	walk(t.self.PID, nil)

	sessions := map[int]bool{}
	seen := make(map[ident]*Process, len(t.seen))
	for _, m := range all {
		sessions[m.sid] = true
		if !m.leader && t.sessionLocked(m.sid) == nil {
			seen[m.ident] = m.owner
		}
	}
	t.seen = seen
	for _, p := range past {
		if t.past[p.id.PID] == p && !sessions[p.id.PID] {
			delete(t.past, p.id.PID)
		}
	}
	return all
}

// adoptLocked decides about a child of ours that we did not start: an orphan. It returns false for a process that is not ours.
func (t *Tree) adoptLocked(m *member, s snapshot) bool {
	if _, ok := t.before[m.ident]; ok {
		t.spareLocked(m.procInfo, s)
		return false
	}
	if w := t.sessionLocked(m.sid); w != nil {
		m.owner = w
		return true
	}
	if p := t.live[m.sid]; p != nil && p.role == asBeside {
		return false // StopBeside ends it
	}
	if w, ok := t.seen[m.ident]; ok {
		m.owner = w
		return true
	}
	// Only PID 1 is given orphans that never were below it, for example what `kubectl exec` left behind.
	if !t.init || s.cgroup[m.PID] {
		return true
	}
	has, _ := hasEnv(m.PID, t.cfg.Marker)
	return has
}

// spareLocked notes that p and all below it are not ours: they come to us as orphans when p ends.
func (t *Tree) spareLocked(p *procInfo, s snapshot) {
	t.before[p.ident] = struct{}{}
	for _, kid := range s.kids[p.PID] {
		t.spareLocked(kid, s)
	}
}

// sessionLocked returns the worker, running or ended, that leads or led session sid.
func (t *Tree) sessionLocked(sid int) *Process {
	if p := t.live[sid]; p != nil && p.role == asWorker {
		return p
	}
	return t.past[sid]
}

// scope is what one Stop is about.
type scope struct {
	members []member
	all     bool // no worker runs outside procs, so that every descendant is meant
	cgroup  string
	live    []*Process // of procs, those not yet reaped
}

// look takes a snapshot and returns what of it Stop(procs) is about: procs, what descends from them and from workers
// that have ended, and, when no other worker runs, everything else too. With spare it is about procs and what descends
// from them alone. With an error the scope has no members, but the
// workers are right.
func (t *Tree) look(procs map[*Process]bool, spare bool) (scope, error) {
	sc := scope{all: !spare}
	t.looking.Lock()
	defer t.looking.Unlock()
	t.awaitForks()
	t.mu.Lock()
	past := slices.Collect(maps.Values(t.past))
	t.mu.Unlock()
	// The table is read without t.mu, so that nobody waits for it to start a process. What has ended since shows up as
	// a process that is signalled in vain and missing the next time.
	snap, err := readSnapshot()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.live {
		switch {
		case p.role != asWorker:
		case procs[p]:
			sc.live = append(sc.live, p)
		default:
			sc.all = false
		}
	}
	if sc.all {
		sc.cgroup = t.cgroupPathLocked()
	}
	if err != nil {
		return sc, err
	}
	if t.init {
		cgroupMembers(t.cgroupPathLocked(), snap.cgroup)
	}
	for _, m := range t.membersLocked(snap, past) {
		in := sc.all
		if m.owner != nil {
			in = procs[m.owner] || !spare && t.live[m.owner.id.PID] != m.owner
		}
		if in {
			sc.members = append(sc.members, m)
		}
	}
	t.pushLocked()
	return sc, nil
}

// empty reports whether nothing of it is left.
func (sc scope) empty() bool { return len(sc.members) == 0 && len(sc.live) == 0 }

// outsiders returns the members that a signal to the groups of the running workers does not reach.
func (sc scope) outsiders() []member {
	return slices.DeleteFunc(slices.Clone(sc.members), func(m member) bool {
		return slices.ContainsFunc(sc.live, func(p *Process) bool { return p.id.PID == m.pgrp })
	})
}

const (
	// scanSoon and scanEvery pace the look-out for processes that leave their session: what a program detaches it
	// mostly detaches at its start.
	scanSoon  = 250 * time.Millisecond
	scanEvery = 2 * time.Second
	// scanShare bounds the cost where the process table is long: one scan takes at most this part of a processor.
	scanShare = 100
)

// scanner records what leaves its worker's session while its descent can still be seen: after a double fork, with the
// marker cleared from the environment, neither the guardian nor PID 1 could tell it from a process that is not ours.
func (t *Tree) scanner() {
	pause := scanEvery
	next := time.Now().Add(pause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-t.closing:
			return
		case <-t.rescan:
			// Sooner, never later: starts in quick succession must not put it off for ever.
			pause = scanSoon
			next = minTime(next, time.Now().Add(pause))
		case <-timer.C:
			effort := Effort(t.scan)
			pause = max(min(2*pause, scanEvery), scanShare*effort)
			next = time.Now().Add(pause)
		}
		timer.Reset(time.Until(next))
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// scan records escaped processes now.
func (t *Tree) scan() {
	if _, err := t.look(nil, false); err != nil {
		t.log.Warn().Err(err).Msg("cannot watch for detached processes")
	}
}

// nudge has the scanner look soon.
func (t *Tree) nudge() {
	select {
	case t.rescan <- struct{}{}:
	default:
	}
}

package planner

import "slices"

// What follows is for nodes that have no copies from each other: see Leader.Local.

// awaited reports whether a node whose workers save has yet to come to a moment of this round that others have.
func (l *Leader) awaited(s *set, m Moment) bool {
	if !l.Local || m.Era < l.era {
		return false
	}
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr == nil || sr.Begun.Era != m.Era || sr.Begun.Compare(m) > 0 || slices.Contains(sr.Refused, m) {
			continue // it does not save, or has passed it over
		}
		if slices.ContainsFunc(sr.Saves, func(shard int) bool { return !l.has(s, n, sr, shard, m) }) {
			return true
		}
	}
	return false
}

// restorable is the newest moment in memory that all workers can restore from there, Never for none. Where a node was
// about to save when the round ended that is a step before the newest, and costs less than a way over the disk.
func (l *Leader) restorable(s *set) Moment {
	if !l.Local {
		return s.complete[0]
	}
	for _, m := range s.complete {
		if m.Compare(s.committed) >= 0 && l.everywhere(s, m) {
			return m
		}
	}
	return Never
}

// everywhere reports whether each node has what its workers restore a moment from.
func (l *Leader) everywhere(s *set, m Moment) bool {
	for n := range l.size {
		sr := l.report(n, s.Key)
		if sr == nil || s.across && l.size > 1 ||
			slices.ContainsFunc(sr.Reads, func(shard int) bool { return !l.has(s, n, sr, shard, m) }) {
			return false
		}
	}
	return true
}

// fallBack has a moment written that not all nodes have what they need of, so that all can read it, and reports whether
// that is under way. What cannot be written is tried once.
func (l *Leader) fallBack(s *set, m Moment) bool {
	if l.writing(s.Dir) {
		return true
	}
	if m.Compare(s.committed) <= 0 || s.fellBack == m {
		return false
	}
	s.fellBack = m
	s.want(m, "not every node has it in memory, and without a job token none gets it from another")
	l.flush(s)
	return s.running != nil || s.pending != nil
}

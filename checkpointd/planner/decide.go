package planner

import (
	"maps"
	"slices"
)

// decide answers workers that ask where to restore from: all are told the same.
func (l *Leader) decide(s *set) {
	asked := 0
	for n := range l.nodes {
		if sr := l.report(n, s.Key); sr != nil {
			asked = max(asked, sr.Loads)
		}
	}
	asked = min(asked, len(s.decisions)+1) // nobody asks again before there is an answer
	missing := slices.Contains(slices.Collect(maps.Values(l.gone)), true)
	for missing && asked > len(s.decisions) {
		s.decisions = append(s.decisions, Decision{Source: FromNone, Err: "not all nodes take part in what is to be restored"})
	}
	for l.all() && asked > len(s.decisions) && !s.choosing {
		if len(s.complete) == 0 || s.committed.Compare(s.complete[0]) > 0 { // what was in memory since is lost
			if l.writing(s.Dir) {
				return // what is on its way to disk is what is needed
			}
			s.choosing = true
			l.act(Choose, s, nil)
			return
		}
		m := l.restorable(s)
		if m == Never {
			if l.fallBack(s, s.complete[0]) {
				return
			}
			s.choosing = true
			l.act(Choose, s, nil)
			return
		}
		if s.verify = []Moment{m}; !l.verified(s, m) {
			return
		}
		s.verify = nil
		d := Decision{Source: FromMemory, At: m}
		for shard := range s.Shards {
			if l.Local {
				break
			}
			d.From = append(d.From, l.holders(s, shard, m)[0])
		}
		s.decisions = append(s.decisions, d)
	}
}

// verified reports whether all nodes have compared their copies of a moment.
func (l *Leader) verified(s *set, m Moment) bool {
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr != nil && slices.ContainsFunc(sr.Copies, func(c Copy) bool { return c.At == m }) && !slices.Contains(sr.Verified, m) {
			return false
		}
	}
	return true
}

package planner

import (
	"slices"
)

// learn finds out what is on disk already.
func (l *Leader) learn(s *set) {
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr == nil {
			continue
		}
		if sr.Committed.Compare(s.committed) > 0 {
			s.committed = sr.Committed
		}
		if sr.Next != "" && sr.Next == l.heads[s.Dir] && sr.NextAt.Compare(s.committed) > 0 {
			s.committed = sr.NextAt
		}
	}
}

// tally finds out which moments are complete, and which can never be.
func (l *Leader) tally(s *set) {
	have := map[Moment]map[int]bool{}
	s.bad = nil
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr == nil {
			continue
		}
		for _, b := range sr.Bad {
			if b.Addr != l.nodes[n].Addr { // of itself a node says so by not having it
				if s.bad == nil {
					s.bad = map[Bad]bool{}
				}
				s.bad[b] = true
			}
		}
	}
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr == nil {
			continue
		}
		for _, c := range sr.Copies {
			if c.Shard < 0 || c.Shard >= s.Shards || s.bad[Bad{c.Shard, c.At, l.nodes[n].Addr}] {
				continue
			}
			if have[c.At] == nil {
				have[c.At] = map[int]bool{}
			}
			have[c.At][c.Shard] = true
		}
	}
	if l.all() {
		s.forget(have)
	}
	for n := range l.nodes {
		if sr := l.report(n, s.Key); sr != nil {
			s.ask(sr, have)
		}
	}
	s.complete, s.whole, s.dead = nil, nil, nil
	for m, shards := range have {
		switch {
		case len(shards) == s.Shards:
			s.whole = append(s.whole, m)
			if !l.awaited(s, m) {
				s.complete = append(s.complete, m)
			}
		case l.all() && m.Era < l.era, l.passedOver(s, m, shards), l.all() &&
			l.abandoned(s, shards): // nobody saves in an era that is over; a node that is away may have its shards
			s.dead = append(s.dead, m)
		}
	}
	newestFirst := func(a, b Moment) int { return b.Compare(a) }
	slices.SortFunc(s.complete, newestFirst)
	slices.SortFunc(s.whole, newestFirst)
	slices.SortFunc(s.dead, newestFirst)
}

// passedOver reports whether a shard without a copy of a moment has gone on: that moment is not waited for.
func (l *Leader) passedOver(s *set, m Moment, have map[int]bool) bool {
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr != nil && slices.Contains(sr.Refused, m) {
			return true
		}
		if sr == nil {
			continue
		}
		for i, shard := range sr.Saves {
			begun := sr.Begun
			if len(sr.Begins) == len(sr.Saves) {
				begun = sr.Begins[i]
			}
			if begun.Compare(m) > 0 && !have[shard] {
				return true
			}
		}
	}
	return false
}

// abandoned reports whether somebody saved a shard in this round that has no copy, and nobody does now.
func (l *Leader) abandoned(s *set, have map[int]bool) bool {
	saved := map[int]bool{}
	for n := range l.nodes {
		if sr := l.report(n, s.Key); sr != nil {
			for _, shard := range sr.Saves {
				saved[shard] = true
			}
		}
	}
	for shard := range s.saved {
		if !have[shard] && !saved[shard] {
			return true
		}
	}
	return false
}

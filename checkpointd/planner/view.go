package planner

import (
	"maps"
	"slices"
)

// shown is how many complete moments a node is told of.
const shown = 3

// View is what a node is to know now.
func (l *Leader) View(node int) View {
	v := View{Drained: l.allEnded(), Addrs: make([]string, l.size)}
	if r := l.nodes[node]; r != nil {
		v.Seen = r.Seq
	}
	for n, r := range l.nodes {
		if !l.Local { // else nobody asks another one for anything
			v.Addrs[n] = r.Addr
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.sets), cmpKey) {
		s := l.sets[k]
		sv := SetView{
			Key: k, Open: s.open, Err: s.err, Dead: s.dead, Verify: s.verify, Decisions: s.decisions,
			Committed: s.committed, Failed: s.failed, FailedAt: s.failedAt, Lost: s.lost, Busy: l.busy(s),
			Complete: s.complete[:min(shown, len(s.complete))], Head: l.heads[k.Dir], Next: s.next, NextAt: s.nextAt,
		}
		for _, m := range l.pinned(s) {
			if m != Never && !slices.Contains(sv.Pin, m) {
				sv.Pin = append(sv.Pin, m)
			}
		}
		if f := s.running; f != nil && !f.committing {
			sv.Write = l.part(s, node)
		}
		sv.Fetch = l.fetches(s, node)
		sv.Sum, sv.Sums = s.asked()
		v.Drained = v.Drained && !sv.Busy
		v.Sets = append(v.Sets, sv)
	}
	return v
}

// pinned are the moments whose copies nobody overwrites.
func (l *Leader) pinned(s *set) []Moment {
	pins := []Moment{s.replicating, s.replicated}
	if s.running != nil {
		pins = append(pins, s.running.at)
	}
	if s.pending != nil {
		pins = append(pins, s.pending.at)
	}
	return pins
}

// busy reports whether something of a set is to be written still.
func (l *Leader) busy(s *set) bool {
	if s.running != nil || s.pending != nil || s.opening || s.open && s.trigger != "" {
		return true
	}
	if l.ended {
		return false
	}
	for n := range l.nodes {
		sr := l.report(n, s.Key)
		if sr == nil {
			continue
		}
		for _, c := range sr.Copies { // a step that waits for other ranks
			if c.Persist && c.At.Compare(s.committed) > 0 && c.At.Compare(s.tried) > 0 && !slices.Contains(s.dead, c.At) {
				return true
			}
		}
	}
	return false
}

// part is what a node writes of the step that is being written.
func (l *Leader) part(s *set, node int) *Order {
	f, r := s.running, l.nodes[node]
	o := &Order{At: f.at, Attempt: f.attempt, Compare: f.why != ""}
	for shard, result := range f.results {
		if r != nil && result == nil && f.writers[shard] == r.Addr {
			o.Shards = append(o.Shards, shard)
		}
	}
	if len(o.Shards) == 0 {
		return nil
	}
	return o
}

// replicate has the newest complete step copied to as many nodes as are wanted, one step after the other.
func (l *Leader) replicate(s *set) {
	if s.replicas < 2 || !l.all() || l.size < 2 {
		return
	}
	saved := func(n int) bool { sr := l.report(n, s.Key); return sr != nil && len(sr.Saves) > 0 }
	if !slices.ContainsFunc(l.order(), saved) { // another one has followed, or workers have not come yet
		s.replicating = Never
		return
	}
	for {
		m := s.replicating
		if m != Never && slices.Contains(s.complete, m) {
			if !l.spread(s, m) {
				return
			}
			s.replicated, s.spreadAgain = m, false
		}
		s.replicating = Never
		if len(s.complete) == 0 || !s.spreadAgain && s.complete[0].Compare(s.replicated) <= 0 &&
			(s.complete[0] != s.replicated || l.spread(s, s.replicated)) { // else a node has given up a copy that was damaged
			return
		}
		s.replicating = s.complete[0]
	}
}

// spread reports whether no node has to get a copy of a moment any more.
func (l *Leader) spread(s *set, m Moment) bool {
	for n := range l.nodes {
		if len(l.wanting(s, m, n)) > 0 {
			return false
		}
	}
	return true
}

// fetches are the copies that a node has to get of the step that is being spread.
func (l *Leader) fetches(s *set, node int) []Fetch {
	if s.replicating == Never {
		return nil
	}
	return l.wanting(s, s.replicating, node)
}

// wanting are the copies of a moment that a node is to have, and has not. The copies of a shard lie as far apart as the
// ranks allow: nodes at the same switch have neighbouring ranks.
func (l *Leader) wanting(s *set, m Moment, node int) []Fetch {
	sr := l.report(node, s.Key)
	if sr != nil && sr.Full {
		return nil
	}
	copies := min(s.replicas, l.size)
	stride := max(1, l.size/copies)
	var found []Fetch
	for shard := range s.Shards {
		holders := l.holders(s, shard, m)
		if len(holders) == 0 || len(holders) >= copies || slices.Contains(holders, node) {
			continue
		}
		for k := 1; k < copies; k++ {
			if (holders[0]+k*stride)%l.size == node {
				found = append(found, Fetch{Shard: shard, At: m, From: holders[0]})
			}
		}
	}
	return found
}

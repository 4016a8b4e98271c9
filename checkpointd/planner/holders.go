package planner

import "slices"

// holders returns the nodes with a copy of a shard at a moment, by group rank: the one whose worker saves it first.
func (l *Leader) holders(s *set, shard int, m Moment) []int {
	var found []int
	for _, n := range l.order() {
		sr := l.report(n, s.Key)
		if sr == nil || !l.has(s, n, sr, shard, m) {
			continue
		}
		if slices.Contains(sr.Saves, shard) && !l.Local { // there each that has one has made it
			found = append([]int{n}, found...)
		} else {
			found = append(found, n)
		}
	}
	return found
}

// Holders returns the nodes with a copy of a shard at a moment, by group rank.
func (l *Leader) Holders(k Key, shard int, m Moment) []int {
	if s := l.sets[k]; s != nil {
		return l.holders(s, shard, m)
	}
	return nil
}

package planner

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Digest is what the bytes of a copy sum up to. Its text is hexadecimal.
type Digest [32]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes 64 digits.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 64 digits.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("a digest has %d digits, want %d", len(text), 2*len(d))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// Sum is what a node states of a copy of a shard.
type Sum struct {
	Shard  int    `json:"shard"`
	At     Moment `json:"at"`
	Digest Digest `json:"digest"`
	// Made says that a worker of the node has made the copy; else the node has it from another, and passes on what that
	// stated.
	Made bool `json:"made,omitempty"`
}

func (s *Sum) copy() Copy { return Copy{Shard: s.Shard, At: s.At} }

// Bad is a copy that a node was given by another one, at Addr, and that is not what the node that made it has stated.
type Bad struct {
	Shard int    `json:"shard"`
	At    Moment `json:"at"`
	Addr  string `json:"addr"`
}

// hear takes what a node states of copies. Who made a copy knows best; among others, and where two say that they made it,
// the first counts.
func (s *set) hear(sr *SetReport) {
	for _, sum := range sr.Sums {
		if known, ok := s.sums[sum.copy()]; !ok && len(s.sums) < 2*maxKnown || ok && sum.Made && !known.Made {
			s.sums[sum.copy()] = sum
		}
	}
}

// ask takes what a node wants to know of copies that somebody has, or whose digest was stated by one that is away. The node
// says so once, maybe before the leader has heard of the copy.
func (s *set) ask(sr *SetReport, have map[Moment]map[int]bool) {
	for _, c := range sr.Want {
		c = Copy{Shard: c.Shard, At: c.At}
		if _, stated := s.sums[c]; (stated || have[c.At][c.Shard]) && len(s.wanted) < maxKnown {
			s.wanted[c] = true
		}
	}
}

// forget gives up what is known of copies that nobody has any more.
func (s *set) forget(have map[Moment]map[int]bool) {
	gone := func(c Copy) bool { return !have[c.At][c.Shard] }
	maps.DeleteFunc(s.wanted, func(c Copy, _ bool) bool { return gone(c) })
	maps.DeleteFunc(s.sums, func(c Copy, _ Sum) bool { return gone(c) })
}

// asked are the copies whose digest is wanted and not known, told those of which it is known.
func (s *set) asked() (asked []Copy, told []Sum) {
	for _, c := range slices.SortedFunc(maps.Keys(s.wanted), func(a, b Copy) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return a.Shard - b.Shard
	}) {
		if sum, ok := s.sums[c]; ok {
			told = append(told, sum)
		} else {
			asked = append(asked, c)
		}
	}
	return asked, told
}

// has reports whether a node has a copy of a shard at a moment that nobody has found to be another one.
func (l *Leader) has(s *set, node int, sr *SetReport, shard int, m Moment) bool {
	return slices.ContainsFunc(sr.Copies, func(c Copy) bool { return c.Shard == shard && c.At == m }) &&
		(len(s.bad) == 0 || !s.bad[Bad{shard, m, l.nodes[node].Addr}])
}

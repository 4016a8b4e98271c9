// Package blamesim is nodes and links that do not exist, and what a network check would find out about them: for the
// tests of package blame, and for the benchmark that holds its rule against DLRover's.
package blamesim

import (
	"fmt"
	"slices"
	"time"

	"muster/netcheck/blame"
)

// World is nodes and links as they are, and what tests of them would give.
type World struct {
	Bad   []bool              // of each node
	Links map[blame.Pair]bool // bad ones
	Speed []time.Duration     // of a node; nil: all the same
}

// New returns a world of n nodes, of which some are bad.
func New(n int, bad ...int) World {
	w := World{Bad: make([]bool, n), Links: map[blame.Pair]bool{}}
	for _, i := range bad {
		w.Bad[i] = true
	}
	return w
}

// Passes says how a test of two nodes ends.
func (w World) Passes(p blame.Pair) bool { return !w.Bad[p.A] && !w.Bad[p.B] && !w.Links[p] }

// Test runs a pair.
func (w World) Test(p blame.Pair) blame.Result {
	if !w.Passes(p) {
		failed := blame.Report{Outcome: blame.Failed, Err: "no answer"}
		return blame.Result{Pair: p, A: failed, B: failed}
	}
	took := time.Second
	if w.Speed != nil {
		took = max(w.Speed[p.A], w.Speed[p.B])
	}
	return blame.Result{Pair: p, A: blame.Report{Outcome: blame.OK, Took: took}, B: blame.Report{Outcome: blame.OK, Took: took}}
}

// Healthy returns the good nodes.
func (w World) Healthy() (nodes []int) {
	for i, bad := range w.Bad {
		if !bad {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// CutOff says that a good node reaches no other good one.
func (w World) CutOff(i int) bool {
	for _, j := range w.Healthy() {
		if i != j && !w.Links[blame.PairOf(i, j)] {
			return false
		}
	}
	return true
}

func (w World) String() string {
	var bad []int
	for i, b := range w.Bad {
		if b {
			bad = append(bad, i)
		}
	}
	var links []blame.Pair
	for p := range w.Links {
		links = append(links, p)
	}
	slices.SortFunc(links, func(a, b blame.Pair) int { return (a.A-b.A)*1000 + a.B - b.B })
	return fmt.Sprintf("%d nodes, bad %v, bad links %v", len(w.Bad), bad, links)
}

// Run does a whole check, and returns its rounds. It checks what holds for every round.
func (w World) Run(c *blame.Check) (rounds []blame.Round, err error) {
	for {
		r, more := c.Next()
		if !more {
			return rounds, nil
		}
		if r.Number != len(rounds) || len(r.Pairs) == 0 || len(rounds) > 2*len(w.Bad)+6 {
			return nil, fmt.Errorf("%v: round %d follows %d: %v", w, r.Number, len(rounds), r.Pairs)
		}
		busy := make([]bool, len(w.Bad))
		results := make([]blame.Result, 0, len(r.Pairs))
		for _, p := range r.Pairs {
			if p.A >= p.B || busy[p.A] || busy[p.B] {
				return nil, fmt.Errorf("%v: a node is in two pairs of round %d: %v", w, r.Number, r.Pairs)
			}
			busy[p.A], busy[p.B] = true, true
			results = append(results, w.Test(p))
		}
		if err := c.Record(results); err != nil {
			return nil, err
		}
		rounds = append(rounds, r)
	}
}

// Names are n node names.
func Names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("node", i)
	}
	return ids
}

// Sets calls f with every set of k numbers below n. The slice is the same each time.
func Sets(n, k int, f func([]int)) {
	set := make([]int, k)
	var pick func(at, from int)
	pick = func(at, from int) {
		if at == k {
			f(set)
			return
		}
		for i := from; i < n; i++ {
			set[at] = i
			pick(at+1, i+1)
		}
	}
	pick(0, 0)
}

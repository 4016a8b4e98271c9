package blame_test

import (
	"fmt"
	"slices"
	"time"

	"muster/netcheck/blame"
)

// world is nodes and links as they are, and what tests of them would give.
type world struct {
	bad   []bool
	links map[blame.Pair]bool // bad ones
	speed []time.Duration     // of a node; nil: all the same
}

func newWorld(n int, bad ...int) world {
	w := world{bad: make([]bool, n), links: map[blame.Pair]bool{}}
	for _, i := range bad {
		w.bad[i] = true
	}
	return w
}

// passes says how a test of two nodes ends.
func (w world) passes(p blame.Pair) bool { return !w.bad[p.A] && !w.bad[p.B] && !w.links[p] }

// test runs a pair.
func (w world) test(p blame.Pair) blame.Result {
	if !w.passes(p) {
		failed := blame.Report{Outcome: blame.Failed, Err: "no answer"}
		return blame.Result{Pair: p, A: failed, B: failed}
	}
	took := time.Second
	if w.speed != nil {
		took = max(w.speed[p.A], w.speed[p.B])
	}
	return blame.Result{Pair: p, A: blame.Report{Outcome: blame.OK, Took: took}, B: blame.Report{Outcome: blame.OK, Took: took}}
}

// healthy returns the good nodes.
func (w world) healthy() (nodes []int) {
	for i, bad := range w.bad {
		if !bad {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// cutOff says that a good node reaches no other good one.
func (w world) cutOff(i int) bool {
	for _, j := range w.healthy() {
		if i != j && !w.links[blame.PairOf(i, j)] {
			return false
		}
	}
	return true
}

func (w world) String() string {
	var bad []int
	for i, b := range w.bad {
		if b {
			bad = append(bad, i)
		}
	}
	var links []blame.Pair
	for p := range w.links {
		links = append(links, p)
	}
	slices.SortFunc(links, func(a, b blame.Pair) int { return (a.A-b.A)*1000 + a.B - b.B })
	return fmt.Sprintf("%d nodes, bad %v, bad links %v", len(w.bad), bad, links)
}

func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("node", i)
	}
	return ids
}

// newCheck is blame.New for options that are right.
func newCheck(n int, opts blame.Options) *blame.Check {
	c, err := blame.New(names(n), opts)
	if err != nil {
		panic(err)
	}
	return c
}

// run does a whole check, and returns its rounds. It checks what holds for every round.
func (w world) run(c *blame.Check) (rounds []blame.Round, err error) {
	for {
		r, more := c.Next()
		if !more {
			return rounds, nil
		}
		if r.Number != len(rounds) || len(r.Pairs) == 0 || len(rounds) > 2*len(w.bad)+6 {
			return nil, fmt.Errorf("%v: round %d follows %d: %v", w, r.Number, len(rounds), r.Pairs)
		}
		busy := make([]bool, len(w.bad))
		results := make([]blame.Result, 0, len(r.Pairs))
		for _, p := range r.Pairs {
			if p.A >= p.B || busy[p.A] || busy[p.B] {
				return nil, fmt.Errorf("%v: a node is in two pairs of round %d: %v", w, r.Number, r.Pairs)
			}
			busy[p.A], busy[p.B] = true, true
			results = append(results, w.test(p))
		}
		if err := c.Record(results); err != nil {
			return nil, err
		}
		rounds = append(rounds, r)
	}
}

// sets calls f with every set of k numbers below n.
func sets(n, k int, f func([]int)) {
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

// allPairs returns all links of n nodes.
func allPairs(n int) (pairs []blame.Pair) {
	sets(n, 2, func(s []int) { pairs = append(pairs, blame.Pair{A: s[0], B: s[1]}) })
	return pairs
}

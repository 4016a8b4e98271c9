package blame

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/go-multierror"
)

const (
	// proof is how many tests with good nodes a node has to fail before it is blamed: one more than the links that may
	// be bad at the same time.
	proof = 3
	// lastProof is how many are enough where no more good nodes can be had.
	lastProof = 2
	// baseRounds are done in any case: in two each node is tested even where one sits out.
	baseRounds = 2
	// extraRounds may follow where something is wrong.
	extraRounds = 4
	// manySuspects is how many bad nodes are promised to be found. Where more passed nothing, some of them met nothing
	// but bad ones, or part of the network is cut off from the rest: so suspects are asked about each other too.
	manySuspects = 3
	// DefaultFactor is how many times slower than the others a straggler is (design.md section 10).
	DefaultFactor = 2
)

// Pair is two nodes by index, A < B, and the link between them.
type Pair struct{ A, B int }

// PairOf returns the pair of two nodes given in either order.
func PairOf(a, b int) Pair { return Pair{min(a, b), max(a, b)} }

// Other returns the node of p that is not node.
func (p Pair) Other(node int) int { return p.A + p.B - node }

// StragglerRule says with what a node's time is compared.
type StragglerRule int

const (
	// MeanOfOthers is the mean of all other nodes' times.
	MeanOfOthers StragglerRule = iota
	// MedianOfAll is the median of all nodes' times, DLRover's rule: it never finds one of two nodes.
	MedianOfAll
)

// Options are what a check may do otherwise. The zero value is the usual check of all nodes.
type Options struct {
	// Full tests every link, which takes a round less than there are nodes (as many rounds where their number is odd).
	Full bool
	// Cleared are ids of nodes that an earlier check found good. Only the others are tested, each first with a cleared
	// one; further cleared nodes are drawn in where something fails. Ids that are not among the nodes are ignored. Full
	// tests all the same.
	Cleared []string
	// Factor is how many times slower than the others a straggler is; 0 means DefaultFactor, less than 1 is refused.
	Factor float64
	// Rule says who the others are.
	Rule StragglerRule
}

// Outcome is how a test ended for one node.
type Outcome int

// The outcomes.
const (
	Missing Outcome = iota // it reported nothing
	OK                     // passed
	Failed                 // failed, or the peer never came
)

// Report is what one node says about the test of its pair.
type Report struct {
	Outcome Outcome
	// Took is how long the work took, of which every pair does the same amount; 0 is not measured.
	Took time.Duration
	// Err says what failed, one line for people.
	Err string
}

// Result is how the test of a pair ended: it passed when both nodes say so.
type Result struct {
	Pair Pair
	A, B Report // of its two nodes
}

// Local is what a node found out about itself, without a peer.
type Local struct {
	Node int
	// Err is what is wrong with it, "" for nothing.
	Err string
	// Compute is how long its matrix multiplications took; 0 is not measured.
	Compute time.Duration
}

// Round is tests that run at the same time. No node is in two of them; one that is in none sits this round out.
type Round struct {
	Number int // from 0
	Pairs  []Pair
}

// Peer returns with whom node is to be tested, false if it sits out.
func (r Round) Peer(node int) (int, bool) {
	for _, p := range r.Pairs {
		if p.A == node || p.B == node {
			return p.Other(node), true
		}
	}
	return -1, false
}

// Check is one network check. It is not safe for concurrent use.
type Check struct {
	opts  Options
	ids   []string
	nodes []node
	links map[Pair]*link
	order []int // who takes part, by position in the tournament
	turn  int   // next round of the tournament
	base  int   // rounds of the tournament that are done in any case
	done  int   // rounds that were recorded
	round *Round
	over  bool // nothing is left to test
	// among says that suspects were tested with each other, as they are once if there are many.
	among bool
}

// node is what is known of one node.
type node struct {
	cleared bool          // by an earlier check
	drawn   bool          // takes part in this one
	fault   string        // of its own
	compute time.Duration // of its own
	good    bool          // passed a test
	best    time.Duration // fastest test that it passed, 0 for none
	peers   []int         // whom it was tested with
}

// link is what is known of one tested link.
type link struct {
	tries  int
	failed bool // once or more
	passed bool // once or more
	said   [2]Report
}

// New returns a check of nodes with these ids, which are names for people too. Their order is part of the plan: it must
// be the same for all who are to have the same.
func New(ids []string, opts Options) (*Check, error) {
	if opts.Factor == 0 {
		opts.Factor = DefaultFactor
	}
	var merr *multierror.Error
	if opts.Factor < 1 || math.IsNaN(opts.Factor) {
		merr = multierror.Append(merr, fmt.Errorf("straggler factor is %v, want 1 or more", opts.Factor))
	}
	if opts.Rule != MeanOfOthers && opts.Rule != MedianOfAll {
		merr = multierror.Append(merr, fmt.Errorf("no straggler rule %d", opts.Rule))
	}
	c := &Check{opts: opts, ids: slices.Clone(ids), nodes: make([]node, len(ids)), links: map[Pair]*link{}}
	index := make(map[string]int, len(ids))
	for i, id := range ids {
		if _, twice := index[id]; twice {
			merr = multierror.Append(merr, fmt.Errorf("two nodes have the id %q", id))
		}
		index[id] = i
	}
	if err := merr.ErrorOrNil(); err != nil {
		return nil, fmt.Errorf("cannot plan a network check: %w", err)
	}
	if !opts.Full {
		for _, id := range opts.Cleared {
			if i, ok := index[id]; ok {
				c.nodes[i].cleared = true
			}
		}
	}
	return c, nil
}

// RecordLocal takes in what nodes found out about themselves. A node at fault by itself is in no later round. It is
// called between rounds, not while one is under way; the last report of a node counts.
func (c *Check) RecordLocal(locals []Local) error {
	if c.round != nil {
		return fmt.Errorf("cannot take in local results while round %d is under way", c.round.Number)
	}
	for _, l := range locals {
		if l.Node < 0 || l.Node >= len(c.nodes) {
			return fmt.Errorf("cannot take in local results of node %d of %d", l.Node, len(c.nodes))
		}
	}
	for _, l := range locals {
		c.nodes[l.Node].fault, c.nodes[l.Node].compute = l.Err, l.Compute
	}
	c.over = false
	return nil
}

// Next returns the round to run, false when nothing is left to test. It returns the same until that was recorded.
func (c *Check) Next() (Round, bool) {
	if c.round == nil && !c.over {
		if pairs := c.plan(); len(pairs) > 0 {
			slices.SortFunc(pairs, comparePairs)
			c.round = &Round{Number: c.done, Pairs: pairs}
		} else {
			c.over = true
		}
	}
	if c.over {
		return Round{}, false
	}
	return Round{Number: c.round.Number, Pairs: slices.Clone(c.round.Pairs)}, true
}

// Record takes in the results of the round that Next returned, in any order. A pair without a result counts as one
// whose nodes reported nothing. Where it returns an error nothing was recorded.
func (c *Check) Record(results []Result) error {
	if c.round == nil {
		return errors.New("cannot record results: no round is under way")
	}
	by := make(map[Pair]Result, len(results))
	for _, r := range results {
		if _, twice := by[r.Pair]; twice {
			return fmt.Errorf("cannot record two results of nodes %d and %d", r.Pair.A, r.Pair.B)
		}
		if _, planned := slices.BinarySearchFunc(c.round.Pairs, r.Pair, comparePairs); !planned {
			return fmt.Errorf("cannot record a result of nodes %d and %d, which round %d does not test", r.Pair.A, r.Pair.B, c.round.Number)
		}
		by[r.Pair] = r
	}
	for _, p := range c.round.Pairs {
		c.take(p, by[p])
	}
	c.round = nil
	c.done++
	return nil
}

func (c *Check) take(p Pair, r Result) {
	l := c.links[p]
	if l == nil {
		l = &link{}
		c.links[p] = l
		c.nodes[p.A].peers = append(c.nodes[p.A].peers, p.B)
		c.nodes[p.B].peers = append(c.nodes[p.B].peers, p.A)
	}
	l.tries++
	if r.A.Outcome != OK || r.B.Outcome != OK {
		l.failed, l.said = true, [2]Report{r.A, r.B}
		return
	}
	l.passed = true
	took := max(r.A.Took, r.B.Took)
	for _, i := range []int{p.A, p.B} {
		n := &c.nodes[i]
		n.good = true
		if took > 0 && (n.best == 0 || took < n.best) {
			n.best = took
		}
	}
}

// bad says that a link was tested and never passed.
func (c *Check) bad(p Pair) bool {
	l := c.links[p]
	return l != nil && !l.passed
}

func (c *Check) tested(a, b int) bool { return c.links[PairOf(a, b)] != nil }

package blame

import (
	"slices"
	"time"
)

// Straggler is a node that works, but slowly.
type Straggler struct {
	Node     int
	Resource Resource
	Took     time.Duration // its time: the best one where there are several
	Others   time.Duration // that of the others, by Options.Rule
}

// Resource is in what a straggler is slow.
type Resource string

// What is compared.
const (
	Compute Resource = "compute" // Local.Compute
	Network Resource = "network" // tests of pairs
)

// pace is how fast the good nodes are with each other. A pair is as slow as its slower node, so a node counts with the
// best of its tests, and is no straggler before it was slow with fast nodes.
type pace struct {
	best   []time.Duration // by node, 0 for those that do not count
	others []time.Duration // by node: what the best is compared with
	fast   []int
	slow   []int // or so it seems
}

func (c *Check) pace() *pace {
	p := &pace{best: make([]time.Duration, len(c.nodes))}
	for i := range c.nodes {
		if c.usable(i) {
			p.best[i] = c.nodes[i].best
		}
	}
	p.others = c.others(p.best, c.opts.Rule)
	// As long as fast nodes have met slow ones only, mean and median hide these. The time that a quarter of the nodes
	// keeps shows whom to ask again.
	known := slices.Sorted(slices.Values(p.best))
	first, _ := slices.BinarySearch(known, 1)
	known = known[first:]
	for i, took := range p.best {
		switch {
		case took == 0:
		case c.tooSlow(took, min(p.others[i], known[(len(known)-1)/4])):
			p.slow = append(p.slow, i)
		default:
			p.fast = append(p.fast, i)
		}
	}
	return p
}

// doubtful are slow nodes that could be so because of their partners or links, as far as that can be tested.
func (p *pace) doubtful(c *Check) (nodes []int) {
	for _, i := range p.slow {
		if !p.proven(c, i) {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// proven says that node i was slow with as many fast nodes as it takes, or as there are.
func (p *pace) proven(c *Check, i int) bool {
	n := 0
	for _, j := range c.nodes[i].peers {
		if _, fast := slices.BinarySearch(p.fast, j); fast && c.links[PairOf(i, j)].passed {
			n++
		}
	}
	return n >= proof || n >= lastProof && len(c.untested(i, p.fast)) == 0
}

func (c *Check) tooSlow(took, others time.Duration) bool {
	return others > 0 && float64(took) > c.opts.Factor*float64(others)
}

// others returns for each node with what its time is compared, 0 for nothing. A time of 0 was not measured.
func (c *Check) others(took []time.Duration, rule StragglerRule) []time.Duration {
	var known []time.Duration
	var sum float64 // of nanoseconds: an int64 holds 292 years, of which 33 nodes may well report more
	for _, t := range took {
		if t > 0 {
			known = append(known, t)
			sum += float64(t)
		}
	}
	others := make([]time.Duration, len(took))
	if len(known) < 2 {
		return others
	}
	slices.Sort(known)
	median := known[len(known)/2]/2 + known[(len(known)-1)/2]/2
	for i, t := range took {
		switch {
		case t <= 0:
		case rule == MedianOfAll:
			others[i] = median
		default:
			others[i] = time.Duration((sum - float64(t)) / float64(len(known)-1))
		}
	}
	return others
}

// stragglers are the nodes that are too slow, by index. A node that is faulty is not told to be slow too.
func (c *Check) stragglers(faulty func(int) bool) (slow []Straggler) {
	compute := make([]time.Duration, len(c.nodes))
	for i := range c.nodes {
		if !faulty(i) {
			compute[i] = c.nodes[i].compute
		}
	}
	others, p := c.others(compute, c.opts.Rule), c.pace()
	for i := range c.nodes {
		if c.tooSlow(compute[i], others[i]) {
			slow = append(slow, Straggler{i, Compute, compute[i], others[i]})
		}
		if c.tooSlow(p.best[i], p.others[i]) && p.proven(c, i) {
			slow = append(slow, Straggler{i, Network, p.best[i], p.others[i]})
		}
	}
	return slow
}

package blame

import (
	"cmp"
	"slices"
)

func comparePairs(a, b Pair) int { return cmp.Or(cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B)) }

// plan returns the pairs of the next round, none when nothing is left to test. Only Next calls it, once per round: it
// draws nodes in.
func (c *Check) plan() []Pair {
	if c.order == nil {
		c.enrol()
	}
	for c.turn < c.base {
		pairs := c.tournament(c.turn)
		if c.turn++; len(pairs) > 0 {
			return pairs
		}
	}
	if c.done >= c.base+extraRounds {
		return nil
	}
	pairs := c.adapt()
	for _, p := range pairs {
		c.draw(p.A)
		c.draw(p.B)
	}
	return pairs
}

// enrol fixes who takes part from the beginning: who has not been cleared, and as many of the others. In round 0
// position i meets the i-th from the end, so that each of the first meets one of the last.
func (c *Check) enrol() {
	c.order = []int{}
	for i := range c.nodes {
		if !c.nodes[i].cleared && c.nodes[i].fault == "" {
			c.draw(i)
		}
	}
	helpers := len(c.order)
	for i := range c.nodes {
		if helpers > 0 && c.nodes[i].cleared && c.nodes[i].fault == "" {
			c.draw(i)
			helpers--
		}
	}
	c.base = rounds(len(c.order))
	if !c.opts.Full {
		c.base = min(c.base, baseRounds)
	}
}

func (c *Check) draw(i int) {
	if !c.nodes[i].drawn {
		c.nodes[i].drawn = true
		c.order = append(c.order, i)
	}
}

// rounds is how many a tournament of n has: n-1, and one more where somebody sits out of each.
func rounds(n int) int { return max(n+n%2-1, 0) }

// tournament returns round r of the round-robin tournament of order by the circle method: one stands still, the others
// move on by one each round. Everybody meets everybody once in all rounds. Left out are nodes at fault by themselves,
// and pairs that were tested before.
func (c *Check) tournament(r int) []Pair {
	m := rounds(len(c.order)) // m+1 positions, the last of which is empty if their number is odd
	var pairs []Pair
	add := func(x, y int) {
		if max(x, y) >= len(c.order) {
			return
		}
		a, b := c.order[x], c.order[y]
		if c.usable(a) && c.usable(b) && !c.tested(a, b) {
			pairs = append(pairs, PairOf(a, b))
		}
	}
	if m > 0 {
		add(m, r)
	}
	for i := 1; i <= m/2; i++ {
		add((r+i)%m, (r-i+m)%m)
	}
	return pairs
}

// usable says that a node may be tested.
func (c *Check) usable(i int) bool { return c.nodes[i].fault == "" }

// adapt returns a round for what the results so far leave open.
func (c *Check) adapt() []Pair {
	suspects, good := c.suspects(), c.good()
	p := &pairing{busy: make([]bool, len(c.nodes))}
	switch {
	case len(good) == 0:
		p.match(suspects, func(i int) []int { return c.untested(i, c.spare()) })
		if len(p.pairs) == 0 {
			return c.bestTurn()
		}
	case len(suspects) > manySuspects && !c.among:
		c.among = true
		p.join(suspects, c.tested)
	}
	slices.SortStableFunc(suspects, func(a, b int) int { return cmp.Compare(c.proofs(a), c.proofs(b)) }) // who lacks most comes first
	p.match(suspects, func(i int) []int { return append(c.untested(i, good), c.untested(i, c.spare())...) })
	p.join(suspects, c.tested)

	pace := c.pace()
	p.match(pace.doubtful(c), func(i int) []int { return c.untested(i, pace.fast) })
	for _, q := range c.failedLinks() {
		if c.links[q].tries == 1 {
			p.add(q.A, q.B)
		}
	}
	return p.pairs
}

// suspects are the nodes that passed nothing and are not found out.
func (c *Check) suspects() (nodes []int) {
	good, spare := c.good(), c.spare()
	for _, i := range c.order {
		if c.usable(i) && !c.nodes[i].good && !c.decided(i, good, spare) {
			nodes = append(nodes, i)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// good are the nodes that passed a test and can be used for more.
func (c *Check) good() (nodes []int) {
	for i := range c.nodes {
		if c.nodes[i].good && c.usable(i) {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// spare are the nodes that an earlier check cleared and this one has not needed.
func (c *Check) spare() (nodes []int) {
	for i := range c.nodes {
		if c.nodes[i].cleared && !c.nodes[i].drawn && c.usable(i) {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// proofs is with how many good nodes node i failed, if it passed nothing.
func (c *Check) proofs(i int) (n int) {
	for _, peer := range c.nodes[i].peers {
		if c.nodes[peer].good && c.usable(peer) && c.bad(PairOf(i, peer)) {
			n++
		}
	}
	return n
}

// decided says that a node that passed nothing has failed with as many good ones as it takes, or as there are.
func (c *Check) decided(i int, good, spare []int) bool {
	n := c.proofs(i)
	return n >= proof || n >= lastProof && len(c.untested(i, good)) == 0 && len(c.untested(i, spare)) == 0
}

// untested returns those of partners that i can be tested with for the first time, the nearest by index first:
// neighbours in rank are mostly neighbours in the network, so a node that is cut off together with them soon meets one
// that passes.
func (c *Check) untested(i int, partners []int) (left []int) {
	for _, j := range partners {
		if j != i && !c.tested(i, j) {
			left = append(left, j)
		}
	}
	slices.SortStableFunc(left, func(a, b int) int { return cmp.Compare(distance(i, a), distance(i, b)) })
	return left
}

func distance(a, b int) int { return max(a-b, b-a) }

// bestTurn returns the round of the tournament that tests the most new pairs: the next one, as long as nothing else was
// done.
func (c *Check) bestTurn() (best []Pair) {
	for r := range rounds(len(c.order)) {
		if pairs := c.tournament(r); len(pairs) > len(best) {
			best = pairs
		}
	}
	return best
}

// failedLinks are the links between good nodes that never passed, in order.
func (c *Check) failedLinks() (failed []Pair) {
	for i := range c.nodes {
		for _, j := range c.nodes[i].peers {
			if p := PairOf(i, j); i < j && c.nodes[i].good && c.nodes[j].good && c.bad(p) && c.usable(i) && c.usable(j) {
				failed = append(failed, p)
			}
		}
	}
	slices.SortFunc(failed, comparePairs)
	return failed
}

package blame

// pairing is the pairs of a round in the making.
type pairing struct {
	busy  []bool // by node
	pairs []Pair
}

// add pairs two nodes if both are free.
func (p *pairing) add(a, b int) {
	if a != b && !p.busy[a] && !p.busy[b] {
		p.busy[a], p.busy[b] = true, true
		p.pairs = append(p.pairs, PairOf(a, b))
	}
}

// join pairs free nodes with each other, but not those that tested says were tested.
func (p *pairing) join(nodes []int, tested func(a, b int) bool) {
	for x, a := range nodes {
		for _, b := range nodes[x+1:] {
			if !tested(a, b) {
				p.add(a, b)
			}
		}
	}
}

// match pairs as many of the free left nodes as possible with free partners of theirs, earlier ones and earlier
// partners first. Partners must not be in left. It is the method of augmenting paths: a partner is taken away from its
// node where that has another.
func (p *pairing) match(left []int, partners func(int) []int) {
	choice := make(map[int][]int, len(left))
	for _, i := range left {
		if p.busy[i] {
			continue
		}
		for _, j := range partners(i) {
			if !p.busy[j] {
				choice[i] = append(choice[i], j)
			}
		}
	}
	with := make(map[int]int) // the left node of a partner
	seen := map[int]bool{}    // whom a search passed that found nothing, the next one need not ask
	for _, i := range left {
		if augment(i, choice, with, seen) {
			clear(seen)
		}
	}
	for _, i := range left {
		for _, j := range choice[i] {
			if k, taken := with[j]; taken && k == i {
				p.add(i, j)
				break
			}
		}
	}
}

// augment finds left node i a partner, if need be by finding others for those who have one.
func augment(i int, choice map[int][]int, with map[int]int, seen map[int]bool) bool {
	for _, j := range choice[i] { // a free one saves a path
		if _, taken := with[j]; !taken {
			with[j] = i
			return true
		}
	}
	for _, j := range choice[i] {
		if seen[j] {
			continue
		}
		seen[j] = true
		if augment(with[j], choice, with, seen) {
			with[j] = i
			return true
		}
	}
	return false
}

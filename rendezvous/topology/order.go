package topology

import (
	"cmp"
	"net/netip"
	"slices"
)

// Node is a node of the round to come.
type Node struct {
	// Addrs are the node's addresses, the one that the file will name first, if that is known: a node with several
	// networks may stand there with any of them.
	Addrs []netip.Addr
	// Survivor says that the node was in the round before, with the group rank Rank.
	Survivor bool
	Rank     int
}

// Order ranks nodes: order[r] is the index of the node that gets group rank r.
//
//   - Nodes under one access switch have consecutive ranks, so have nodes under one switch of every level above.
//   - Nodes that t does not name come last.
//   - A survivor keeps its rank if that lies within the ranks of its access switch. The others take what is left there,
//     survivors first, by their old rank, then newcomers in the order of nodes.
//   - Switches come in the order of their first node, survivors by rank before newcomers. Where nobody survives that is
//     DLRover's order (DpTopologySorter in its net_topology.py, read at 0379ec3), but for two things: DLRover ignores the
//     levels above the access switch, and takes nodes that it does not know as one more switch.
//   - Where another order of switches lets more survivors keep their ranks, that one is taken, as far as it is found without
//     trying all: when an access switch dies with all its nodes, the last ones move into the gap and not everybody behind it.
//
// Newcomers are to be given in an order that is the same everywhere; for survivors with ranks of their own it does not
// matter.
func (t *Topology) Order(nodes []Node) []int {
	p := &plan{rank: make([]int, len(nodes)), order: make([]int, len(nodes))}
	turn := make([]int, len(nodes)) // survivors by rank, then newcomers
	for i, n := range nodes {
		turn[i], p.rank[i] = i, none
		if n.Survivor && n.Rank >= 0 && n.Rank < none {
			p.rank[i] = n.Rank
		}
	}
	slices.SortStableFunc(turn, func(a, b int) int { return cmp.Compare(p.rank[a], p.rank[b]) })
	root, unnamed := &group{}, &group{}
	groups := map[*netSwitch]*group{nil: root}
	for _, i := range turn {
		g := unnamed
		if s := t.access(nodes[i].Addrs); s != nil {
			g = groupOf(groups, s)
			for up := s; up != nil; up = up.up {
				groups[up.up].count(p.rank[i])
			}
		}
		g.nodes = append(g.nodes, i)
		g.count(p.rank[i])
	}
	p.put(root, 0)
	p.put(unnamed, root.size)
	return p.order
}

const none = int(^uint(0) >> 1) // the rank of a newcomer

// plan is an order in the making.
type plan struct {
	rank  []int // by node: the one before, or none
	order []int // by rank: the node, or -1
}

// group is the nodes under one switch.
type group struct {
	below []*group // under the switches below, in the order of their first nodes
	nodes []int    // where there is no switch below; survivors by rank, then newcomers
	size  int      // in nodes
	ranks []int    // of the survivors, ascending
}

func (g *group) count(rank int) {
	g.size++
	if rank != none {
		g.ranks = append(g.ranks, rank)
	}
}

// groupOf returns the group of s and makes it, and those above it, where there is none yet.
func groupOf(groups map[*netSwitch]*group, s *netSwitch) *group {
	g := groups[s]
	if g == nil {
		g = &group{}
		groups[s] = g
		up := groupOf(groups, s.up)
		up.below = append(up.below, g)
	}
	return g
}

// survivors returns how many of g had a rank in [start, end).
func (g *group) survivors(start, end int) int {
	first, _ := slices.BinarySearch(g.ranks, start)
	behind, _ := slices.BinarySearch(g.ranks, end)
	return behind - first
}

// put gives the nodes of g the ranks from start on, and returns how many of them keep theirs.
func (p *plan) put(g *group, start int) (kept int) {
	if len(g.below) == 0 {
		return p.fill(g.nodes, start)
	}
	kept = p.putAll(g.below, start)
	if kept == g.survivors(start, start+g.size) {
		return kept // more is impossible
	}
	best, now := g.below, g.below
	for _, majority := range []bool{false, true} {
		other := fit(g.below, start, start+g.size, majority)
		if slices.Equal(other, now) {
			continue
		}
		now = other
		if n := p.putAll(now, start); n > kept {
			best, kept = now, n
		}
	}
	if !slices.Equal(best, now) {
		p.putAll(best, start)
	}
	return kept
}

func (p *plan) putAll(groups []*group, start int) (kept int) {
	for _, g := range groups {
		kept += p.put(g, start)
		start += g.size
	}
	return kept
}

// fill is put for nodes that are all alike: who had a rank among these keeps it, the others get the rest in turn.
func (p *plan) fill(nodes []int, start int) (kept int) {
	end := start + len(nodes)
	for r := start; r < end; r++ {
		p.order[r] = -1
	}
	for _, n := range nodes {
		if r := p.rank[n]; r >= start && r < end && p.order[r] < 0 {
			p.order[r] = n
			kept++
		}
	}
	free := start
	for _, n := range nodes {
		if r := p.rank[n]; r >= start && r < end && p.order[r] == n {
			continue
		}
		for p.order[free] >= 0 {
			free++
		}
		p.order[free] = n
	}
	return kept
}

// fit orders groups, which are to have the ranks [start, end), so that many survivors keep theirs. The best order would
// take trying them all; this one puts a group where most of its survivors were, and fills gaps with groups that have
// nobody to keep a rank, with majority also with those of which half or less could keep theirs.
func fit(groups []*group, start, end int, majority bool) []*group {
	type fixed struct {
		*group
		lo, hi int // where it may start
	}
	var fix []fixed
	var loose, order []*group
	for _, g := range groups {
		if lo, hi, n := g.home(start, end); n > 0 && (!majority || 2*n > g.size) {
			fix = append(fix, fixed{g, lo, hi})
		} else {
			loose = append(loose, g)
		}
	}
	slices.SortStableFunc(fix, func(a, b fixed) int { return cmp.Compare(a.hi, b.hi) })
	at := start
	put := func(g *group) {
		order = append(order, g)
		at += g.size
	}
	for _, f := range fix {
		for at < f.lo {
			best, miss := -1, f.lo-at // a group of another size than the gap is better than none if it leaves f nearer to home
			for i, g := range loose {
				if m := max(f.lo-at-g.size, at+g.size-f.hi, 0); m < miss {
					best, miss = i, m
				}
				if miss == 0 {
					break
				}
			}
			if best < 0 {
				break
			}
			put(loose[best])
			loose = slices.Delete(loose, best, best+1)
		}
		put(f.group)
	}
	return append(order, loose...)
}

// home returns where in [start, end) g may begin so that most of its survivors find their rank there, and how many do.
func (g *group) home(start, end int) (lo, hi, most int) {
	last := end - g.size
	for _, r := range g.ranks {
		// The best place begins at a survivor's rank, or as near to it as can be: from any other it could move towards
		// the next.
		at := min(max(r, start), last)
		n := g.survivors(at, at+g.size)
		if n <= most {
			continue
		}
		first, _ := slices.BinarySearch(g.ranks, at)
		lo, hi = max(start, g.ranks[first+n-1]-g.size+1), min(last, g.ranks[first])
		most = n
	}
	return lo, hi, most
}

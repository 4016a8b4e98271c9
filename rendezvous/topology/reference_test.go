package topology_test

import (
	"cmp"
	"slices"

	"muster/rendezvous/topology"
)

const none = -1

// tree is nodes by switch, in the order of the first survivor or newcomer.
type tree struct {
	below []*tree
	path  string
	nodes []int
}

func (t *tree) size() int {
	n := len(t.nodes)
	for _, b := range t.below {
		n += b.size()
	}
	return n
}

// grow returns nodes as a tree, and those that are in none.
func grow(topo *topology.Topology, nodes []topology.Node) (root *tree, unnamed []int) {
	root = &tree{}
	all := map[string]*tree{"": root}
	turn := make([]int, len(nodes))
	for i := range turn {
		turn[i] = i
	}
	rank := func(i int) int {
		if nodes[i].Survivor {
			return nodes[i].Rank
		}
		return 1 << 30
	}
	slices.SortStableFunc(turn, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range turn {
		at := root
		for _, s := range place(topo, nodes[i]) {
			path := at.path + "/" + s
			if all[path] == nil {
				all[path] = &tree{path: path}
				at.below = append(at.below, all[path])
			}
			at = all[path]
		}
		if at == root {
			unnamed = append(unnamed, i)
		} else {
			at.nodes = append(at.nodes, i)
		}
	}
	return root, unnamed
}

// fillPlain ranks alike nodes from start on: who has a rank there keeps it.
func fillPlain(nodes []topology.Node, of []int, start int) []int {
	order := make([]int, len(of))
	taken := make(map[int]bool)
	for i := range order {
		order[i] = none
		for _, n := range of {
			if nodes[n].Survivor && nodes[n].Rank == start+i && !taken[n] {
				order[i], taken[n] = n, true
				break
			}
		}
	}
	for _, n := range of {
		if !taken[n] {
			order[slices.Index(order, none)] = n
		}
	}
	return order
}

// plainOrder takes switches in the order of their first node.
func plainOrder(topo *topology.Topology, nodes []topology.Node) []int {
	root, unnamed := grow(topo, nodes)
	var order []int
	var walk func(t *tree)
	walk = func(t *tree) {
		order = append(order, fillPlain(nodes, t.nodes, len(order))...)
		for _, b := range t.below {
			walk(b)
		}
	}
	walk(root)
	return append(order, fillPlain(nodes, unnamed, len(order))...)
}

// bestKept tries every order of switches.
func bestKept(topo *topology.Topology, nodes []topology.Node) int {
	root, unnamed := grow(topo, nodes)
	var best func(t *tree, start int) int
	best = func(t *tree, start int) int {
		most := 0
		for r, i := range fillPlain(nodes, t.nodes, start) {
			if nodes[i].Survivor && nodes[i].Rank == start+r {
				most++
			}
		}
		own := most
		var try func(left []*tree, at, so int)
		try = func(left []*tree, at, so int) {
			most = max(most, so)
			for i, b := range left {
				rest := slices.Delete(slices.Clone(left), i, i+1)
				try(rest, at+b.size(), so+best(b, at))
			}
		}
		try(t.below, start, own)
		return most
	}
	return best(root, 0) + best(&tree{nodes: unnamed}, root.size())
}

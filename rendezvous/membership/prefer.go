package membership

// preferred gives nodes the group ranks that they would like to have, where ranks are given when nodes meet: order is by
// group rank the index of a node, and wanted by index the rank that it would like, negative for none. A rank is kept for
// the one node that wants it, if there is such a rank, and not for one of several. Nodes of kept have it as before: their
// workers find there what they have left in memory. All others have what is left, in their order.
func preferred(order, wanted []int, kept func(rank, i int) bool) []int {
	count := make(map[int]int, len(order))
	for _, rank := range wanted {
		count[rank]++
	}
	given := make([]int, len(order))
	placed := make([]bool, len(order)) // by index
	for rank, i := range order {
		given[rank] = -1
		if kept(rank, i) {
			given[rank], placed[i] = i, true
		}
	}
	for i, rank := range wanted {
		if rank >= 0 && rank < len(given) && count[rank] == 1 && given[rank] < 0 && !placed[i] {
			given[rank], placed[i] = i, true
		}
	}
	next := 0
	for rank := range given {
		if given[rank] >= 0 {
			continue
		}
		for placed[order[next]] {
			next++
		}
		given[rank] = order[next]
		next++
	}
	return given
}

// tellRank tells of a place in a round that has another rank than this node would like to have. It is told once as long
// as it stays so.
func (h *Handler) tellRank(a assignment) {
	if wanted := h.cfg.Prefers - 1; wanted >= 0 && a.Rank != wanted && h.toldRank != a.Rank+1 {
		why := "another node has that rank, or asks for the same"
		switch {
		case a.Mixed:
			why = "agents of torchrun take part, whose rules give the ranks"
		case wanted >= a.Size:
			why = "fewer nodes take part"
		}
		h.log.Warn().Int("node_rank", wanted).Int("group_rank", a.Rank).Str("reason", why).
			Msg("this node has another rank than it was started with")
	}
	h.toldRank = a.Rank + 1
}

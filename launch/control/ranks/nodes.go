package ranks

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/report"
)

// onNode are ranks of one node, as the status of the world tells of them.
type onNode struct {
	node  string // as people call it
	ranks []int
}

// nodesOf are the nodes of a job with their ranks, in the order of these: their places in the list are the group ranks.
func nodesOf(d *control.Answer) []onNode {
	var nodes []onNode
	for _, t := range d.Tasks {
		if ranks, err := parse(t.Ranks); err == nil { // none for a node that has said nothing
			nodes = append(nodes, onNode{t.Node, ranks})
		}
	}
	slices.SortStableFunc(nodes, func(x, y onNode) int { return cmp.Compare(x.ranks[0], y.ranks[0]) })
	return nodes
}

// on are the ranks of the node that is named by its group rank or its name.
func on(d *control.Answer, node string) ([]int, error) {
	nodes := nodesOf(d)
	if i, err := strconv.Atoi(node); err == nil && i >= 0 && i < len(nodes) {
		return nodes[i].ranks, nil
	}
	var found []int
	for _, n := range nodes {
		if n.node == node {
			found = append(found, n.ranks...)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	hint := "muster status shows the nodes"
	if len(nodes) > 0 {
		hint = "name one by its group rank, 0 to " + strconv.Itoa(len(nodes)-1) + ", or by its name"
	}
	return nil, errhint.With(errhint.Usagef("--node %s: job %s has no such node with ranks", node, printable.Output(d.RunID)), hint)
}

// elsewhere sorts ranks that are not on this machine by their nodes. An error says which is nowhere.
func elsewhere(job control.Found, d *control.Answer, ranks []int, here []Local) ([]onNode, error) {
	var sorted []onNode
	nodes := nodesOf(d)
	for _, rank := range ranks {
		i := slices.IndexFunc(nodes, func(n onNode) bool { return slices.Contains(n.ranks, rank) })
		if i < 0 {
			return nil, noRank(job, d, rank, here)
		}
		if len(sorted) == 0 || sorted[len(sorted)-1].ranks[0] != nodes[i].ranks[0] {
			sorted = append(sorted, nodes[i])
		}
	}
	for i := range sorted {
		sorted[i].node = printable.Output(sorted[i].node)
		sorted[i].ranks = slices.DeleteFunc(slices.Clone(sorted[i].ranks), func(r int) bool { return !slices.Contains(ranks, r) })
	}
	return sorted, nil
}

// noRank is why a job has no worker with a rank that can be reached.
func noRank(job control.Found, d *control.Answer, rank int, here []Local) error {
	switch {
	case d.WorldSize == 0 || rank < d.WorldSize:
		if len(here) == 0 && len(d.Ranks) == 0 {
			return errhint.Usagef("job %s has no worker yet (%s)", printable.Output(d.RunID), d.Phase)
		}
		return errhint.Code(errhint.With(fmt.Errorf("no node of job %s has said that it runs rank %d", printable.Output(d.RunID), rank),
			"try again when muster status shows it"), errhint.TryAgain)
	case len(d.Ranks) > 0:
		return errhint.Usagef("job %s has no rank %d: there are only %s", printable.Output(job.RunID()), rank, worldRanks(d))
	}
	return errhint.Usagef("job %s has no rank %d: its ranks are 0 to %d", printable.Output(job.RunID()), rank, d.WorldSize-1)
}

// worldRanks are the ranks of a job as they are told, each once and not too many.
func worldRanks(d *control.Answer) string {
	var list []string
	ranks := slices.Clone(d.Ranks)
	slices.SortFunc(ranks, func(x, y report.Rank) int { return cmp.Compare(x.Rank, y.Rank) })
	for _, r := range ranks {
		list = append(list, strconv.Itoa(r.Rank))
	}
	if list = slices.Compact(list); len(list) > 16 {
		return list[0] + " to " + list[len(list)-1]
	}
	return strings.Join(list, ", ")
}

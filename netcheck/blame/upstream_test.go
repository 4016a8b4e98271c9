package blame_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"muster/netcheck/blame"
)

// upstream is the rule of DLRover's network check (NetworkCheckRendezvousManager in rdzv_manager.py, read at 00b234b, and
// the agent's part of it, dlrover.md 2.3 and 2.4): whom it blames, and in how many rounds. Pairs of neighbours by rank,
// then the fastest with the slowest; a failed node counts with 3600 s, nodes of equal time stand by rank; who is left over
// joins the last pair. A node is good when it passed once. Up to three nodes are all given up when one fails.
func upstream(w world) (blamed []bool, rounds int) {
	n := len(w.bad)
	ok, took := make([]bool, n), make([]int, n)
	run := func(groups [][]int) {
		rounds++
		for _, g := range groups {
			passes := !slices.ContainsFunc(g, func(i int) bool { return w.bad[i] })
			for _, i := range g {
				if passes {
					ok[i], took[i] = true, 1
				} else if !ok[i] {
					took[i] = 3600
				}
			}
		}
	}
	leftOver := func(groups [][]int, i int) [][]int {
		if len(groups) == 0 {
			return [][]int{{i}}
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], i)
		return groups
	}
	var groups [][]int
	for i := 0; i+1 < n; i += 2 {
		groups = append(groups, []int{i, i + 1})
	}
	if n%2 == 1 {
		groups = leftOver(groups, n-1)
	}
	run(groups)
	blamed = make([]bool, n)
	if failed := slices.Contains(ok, false); !failed || n <= 3 {
		for i := range blamed {
			blamed[i] = failed
		}
		return blamed, rounds
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return took[a] - took[b] })
	groups = nil
	for l, r := 0, n-1; l < r; l, r = l+1, r-1 {
		groups = append(groups, []int{order[l], order[r]})
	}
	if n%2 == 1 {
		groups = leftOver(groups, order[n/2])
	}
	run(groups)
	for i := range blamed {
		blamed[i] = !ok[i]
	}
	return blamed, rounds
}

// score counts over all sets of so many bad nodes.
type score struct {
	sets    int
	healthy int // sets in which a healthy node is blamed
	found   int // sets in which all bad nodes are
	rounds  int // the most
}

func (s *score) count(w world, blamed func(int) bool, rounds int) {
	s.sets++
	s.rounds = max(s.rounds, rounds)
	healthy, found := false, true
	for i, bad := range w.bad {
		healthy = healthy || !bad && blamed(i)
		found = found && (!bad || blamed(i))
	}
	if healthy {
		s.healthy++
	}
	if found {
		s.found++
	}
}

func (s *score) percent(n int) string { return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(s.sets)) }

// TestUpstream compares our rule with DLRover's, over all sets of one to three bad nodes with two healthy ones or more. It
// logs the table of docs/network-check.md. The figures wanted of upstream are those of dlrover.md 2.9, found there with
// another program.
func TestUpstream(t *testing.T) {
	want := map[[2]int]string{
		{4, 1}: "0 %", {5, 1}: "40 %", {6, 1}: "0 %", {7, 1}: "0 %", {8, 1}: "0 %", {9, 1}: "0 %",
		{4, 2}: "33 %", {5, 2}: "70 %", {6, 2}: "80 %", {7, 2}: "76 %", {8, 2}: "0 %", {9, 2}: "50 %",
		{12, 2}: "0 %", {16, 2}: "0 %", {32, 2}: "0 %", {33, 2}: "0 %",
		{8, 3}: "29 %", {9, 3}: "74 %", {12, 3}: "0 %", {16, 3}: "0 %", {32, 3}: "0 %", {33, 3}: "0 %",
	}
	var table strings.Builder
	for _, n := range []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 32, 33} {
		for k := 1; k <= min(3, n-2); k++ {
			var theirs, ours score
			sets(n, k, func(bad []int) {
				w, c := newWorld(n, bad...), newCheck(n, blame.Options{})
				blamed, rounds := upstream(w)
				theirs.count(w, func(i int) bool { return blamed[i] }, rounds)
				done, err := w.run(c)
				if err != nil {
					t.Fatal(err)
				}
				v := c.Verdict()
				ours.count(w, func(i int) bool { return v.Nodes[i].Status == blame.Fail }, len(done))
			})
			got := theirs.percent(theirs.healthy)
			if figure, known := want[[2]int{n, k}]; known && figure != got {
				t.Errorf("%d of %d nodes bad: upstream blames a healthy one in %s of the sets, want %s", k, n, got, figure)
			}
			if ours.healthy > 0 || ours.found < ours.sets {
				t.Errorf("%d of %d nodes bad: we blame a healthy one in %d of %d sets, and find all bad ones in %d", k, n, ours.healthy, ours.sets, ours.found)
			}
			fmt.Fprintf(&table, "| %d | %d | %d | %s | %s | %s | %s | %d | %d |\n", n, k, ours.sets, got, ours.percent(ours.healthy),
				theirs.percent(theirs.found), ours.percent(ours.found), theirs.rounds, ours.rounds)
		}
	}
	t.Logf("\n| nodes | bad | sets | healthy blamed: DLRover | muster | all bad found: DLRover | muster | rounds: DLRover | muster |\n%s", table.String())
}

package blamesim

import (
	"slices"

	"muster/netcheck/blame"
)

// upstream is the rule of DLRover's network check (NetworkCheckRendezvousManager in rdzv_manager.py, read at 00b234b,
// and the agent's part of it, dlrover.md 2.3 and 2.4): whom it blames, and in how many rounds. Pairs of neighbours by
// rank, then the fastest with the slowest; a failed node counts with 3600 s, nodes of equal time stand by rank; who is
// left over joins the last pair. A node is good when it passed once. Up to three nodes are all given up when one fails.
func upstream(w World) (blamed []bool, rounds int) {
	n := len(w.Bad)
	ok, took := make([]bool, n), make([]int, n)
	run := func(groups [][]int) {
		rounds++
		for _, g := range groups {
			passes := !slices.ContainsFunc(g, func(i int) bool { return w.Bad[i] })
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

// Score counts worlds that were judged.
type Score struct {
	Worlds  int
	Healthy int // in which a healthy node is blamed
	Found   int // in which all bad nodes are
	Rounds  int // the most
}

func (s *Score) count(w World, blamed func(int) bool, rounds int) {
	s.Worlds++
	s.Rounds = max(s.Rounds, rounds)
	healthy, found := false, true
	for i, bad := range w.Bad {
		healthy = healthy || !bad && blamed(i)
		found = found && (!bad || blamed(i))
	}
	if healthy {
		s.Healthy++
	}
	if found {
		s.Found++
	}
}

// Percent is the share of n in the worlds.
func (s *Score) Percent(n int) float64 { return 100 * float64(n) / float64(s.Worlds) }

// Compare judges every set of k bad ones among n nodes by our rule and by DLRover's.
func Compare(n, k int) (ours, theirs Score, err error) {
	Sets(n, k, func(bad []int) {
		w := New(n, bad...)
		c, newErr := blame.New(Names(n), blame.Options{})
		if newErr != nil {
			err = newErr
			return
		}
		done, runErr := w.Run(c)
		if runErr != nil {
			err = runErr
			return
		}
		v := c.Verdict()
		ours.count(w, func(i int) bool { return v.Nodes[i].Status == blame.Fail }, len(done))
		blamed, rounds := upstream(w)
		theirs.count(w, func(i int) bool { return blamed[i] }, rounds)
	})
	return ours, theirs, err
}

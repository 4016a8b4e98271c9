package blame_test

import (
	"fmt"
	"testing"

	"muster/internal/testutil"
	"muster/netcheck/blame"
	"muster/netcheck/blame/blamesim"
)

// checkSound checks what holds in every world with up to two bad links: no healthy node is blamed but one that reaches
// no other healthy node, no bad node is cleared, no good link is blamed.
func checkSound(w blamesim.World, v blame.Verdict) error {
	for i, bad := range w.Bad {
		switch s := v.Nodes[i].Status; {
		case !bad && s == blame.Fail && !w.CutOff(i):
			return fmt.Errorf("%v: healthy node %d is blamed: %s", w, i, v.Nodes[i].Reason)
		case bad && s == blame.Pass:
			return fmt.Errorf("%v: bad node %d passes: %s", w, i, v.Nodes[i].Reason)
		case v.Nodes[i].Reason == "":
			return fmt.Errorf("%v: node %d is %s for no reason", w, i, s)
		}
	}
	for _, l := range v.Links {
		if !w.Links[l.Pair] || l.Unsteady {
			return fmt.Errorf("%v: good link %v is blamed: %s", w, l.Pair, l.Reason)
		}
	}
	return checkDoubts(w, v)
}

// checkDoubts checks that each explanation explains its failed tests, that every AMBIGUOUS node is innocent by one of
// them, and guilty by another one, where they are so few that all simple ones are given.
func checkDoubts(w blamesim.World, v blame.Verdict) error {
	doubtful := make([]bool, len(w.Bad))
	for _, d := range v.Doubts {
		explained := map[int]bool{}
		excused := map[int]bool{}
		for _, e := range d.Explanations {
			bad, links := map[int]bool{}, map[blame.Pair]bool{}
			for _, i := range e.Nodes {
				bad[i] = true
			}
			for _, p := range e.Links {
				links[p] = true
			}
			for _, p := range d.Links {
				if !bad[p.A] && !bad[p.B] && !links[p] {
					return fmt.Errorf("%v: %+v does not explain %v", w, e, p)
				}
			}
			for _, i := range d.Nodes {
				doubtful[i] = true
				explained[i] = explained[i] || bad[i]
				excused[i] = excused[i] || !bad[i]
			}
		}
		for _, i := range d.Nodes {
			if !excused[i] || !explained[i] && len(d.Nodes) <= 2 {
				return fmt.Errorf("%v: node %d is ambiguous, and explanations are %+v", w, i, d.Explanations)
			}
		}
	}
	for i, n := range v.Nodes {
		if (n.Status == blame.Ambiguous) != doubtful[i] {
			return fmt.Errorf("%v: node %d is %s, and doubts are %+v", w, i, n.Status, v.Doubts)
		}
	}
	return nil
}

// checkExact checks that exactly the bad nodes are blamed.
func checkExact(w blamesim.World, v blame.Verdict) error {
	for i, bad := range w.Bad {
		want := blame.Pass
		if bad {
			want = blame.Fail
		}
		if v.Nodes[i].Status != want {
			return fmt.Errorf("%v: node %d is %s, want %s: %s", w, i, v.Nodes[i].Status, want, v.Nodes[i].Reason)
		}
	}
	if len(v.Links)+len(v.Doubts)+len(v.Stragglers) > 0 {
		return fmt.Errorf("%v: links %v, doubts %v, stragglers %v", w, v.Links, v.Doubts, v.Stragglers)
	}
	return nil
}

// TestExact tries every set of up to three bad nodes with two healthy ones or more, of up to 33 nodes.
func TestExact(t *testing.T) {
	for n := 3; n <= 33; n++ {
		if n > 16 && !testutil.Soak() { // TestUpstream has 32 and 33
			continue
		}
		for k := 0; k <= min(3, n-2); k++ {
			blamesim.Sets(n, k, func(bad []int) {
				w, c := blamesim.New(n, bad...), newCheck(n, blame.Options{})
				rounds, err := w.Run(c)
				if err != nil {
					t.Fatal(err)
				}
				if err := checkExact(w, c.Verdict()); err != nil {
					t.Fatal(err)
				}
				if most := []int{2, 4, 5, 6}[k]; len(rounds) > most {
					t.Fatalf("%v: %d rounds, want up to %d", w, len(rounds), most)
				}
			})
		}
	}
}

// TestLinks tries every set of up to three bad nodes, with two healthy ones or more, and up to two bad links. In the
// full mode every bad link between two healthy nodes is found, or one of the two has not passed.
func TestLinks(t *testing.T) {
	last := 7
	if testing.Short() {
		last = 6
	}
	if testutil.Soak() {
		last = 11
	}
	for _, full := range []bool{false, true} {
		for n := 2; n <= last; n++ {
			all := allPairs(n)
			for k := 0; k <= min(3, n-2); k++ {
				for l := 1; l <= min(2, len(all)); l++ {
					blamesim.Sets(n, k, func(bad []int) {
						w := blamesim.New(n, bad...)
						blamesim.Sets(len(all), l, func(links []int) {
							clear(w.Links)
							for _, i := range links {
								w.Links[all[i]] = true
							}
							c := newCheck(n, blame.Options{Full: full})
							rounds, err := w.Run(c)
							if err == nil {
								err = checkLinks(w, c, rounds, full)
							}
							if err != nil {
								t.Fatal(err)
							}
						})
					})
				}
			}
		}
	}
}

func checkLinks(w blamesim.World, c *blame.Check, rounds []blame.Round, full bool) error {
	n, k, l := len(w.Bad), len(w.Bad)-len(w.Healthy()), len(w.Links)
	v := c.Verdict()
	if err := checkSound(w, v); err != nil {
		return err
	}
	most := 6
	if full {
		most = n + n%2 - 1 + l
	}
	if len(rounds) > most {
		return fmt.Errorf("%v: %d rounds, want up to %d", w, len(rounds), most)
	}
	found, tested := map[blame.Pair]bool{}, map[blame.Pair]bool{}
	for _, l := range v.Links {
		found[l.Pair] = true
	}
	for _, r := range rounds {
		for _, p := range r.Pairs {
			tested[p] = true
		}
	}
	for p := range w.Links {
		passes := v.Nodes[p.A].Status == blame.Pass && v.Nodes[p.B].Status == blame.Pass
		if passes && tested[p] && !found[p] || full && !tested[p] {
			return fmt.Errorf("%v: bad link %v is not found", w, p)
		}
	}
	for i, bad := range w.Bad {
		switch s := v.Nodes[i].Status; {
		case l == 1 && !bad && s == blame.Fail:
			return fmt.Errorf("%v: healthy node %d is blamed for one bad link: %s", w, i, v.Nodes[i].Reason)
		case l == 1 && k <= 1 && n >= 4 && bad && s != blame.Fail:
			return fmt.Errorf("%v: bad node %d is %s: %s", w, i, s, v.Nodes[i].Reason)
		}
	}
	untested := 0
	for p := range c.Untested() {
		if untested++; tested[p] {
			return fmt.Errorf("%v: %v is listed as untested", w, p)
		}
	}
	if untested != v.Untested || full && untested > 0 {
		return fmt.Errorf("%v: %d untested links are listed, %d counted", w, untested, v.Untested)
	}
	return nil
}

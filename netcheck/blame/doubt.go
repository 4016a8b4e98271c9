package blame

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
)

// Doubt is failed tests that hang together and that nobody can be blamed for.
type Doubt struct {
	Nodes []int  // the AMBIGUOUS ones, by index
	Links []Pair // the failed tests, in order
	// Explanations are what would explain all of Links: the simplest ones, nodes before links, and the one with links
	// only.
	Explanations []Explanation
}

// Explanation is nodes and links that are bad if this is what happened.
type Explanation struct {
	Nodes []int
	Links []Pair
}

func (e Explanation) faults() int { return len(e.Nodes) + len(e.Links) }

// Text is an explanation for people.
func (c *Check) Text(e Explanation) string {
	var parts []string
	switch len(e.Nodes) {
	case 0:
	case 1:
		parts = append(parts, "node "+c.names(e.Nodes)+" is bad")
	default:
		parts = append(parts, "nodes "+c.names(e.Nodes)+" are bad")
	}
	for i, p := range e.Links {
		if i == mostExplanations && len(e.Links) > i+1 {
			parts = append(parts, "and more links are")
			break
		}
		parts = append(parts, "the link between "+c.names([]int{p.A, p.B})+" is bad")
	}
	return strings.Join(parts, ", ")
}

const (
	// mostDoubtful is up to how many nodes all explanations are looked at: 2^8 sets of nodes.
	mostDoubtful = 8
	// mostExplanations are given, more help nobody.
	mostExplanations = 8
)

// doubts collects the failed tests that no node at fault and no link between good nodes explains.
func (c *Check) doubts(status []Status) (doubts []Doubt) {
	seen := make([]bool, len(c.nodes))
	for first, s := range status {
		if s != Ambiguous || seen[first] {
			continue
		}
		var d Doubt
		seen[first] = true
		for reach := []int{first}; len(reach) > 0; {
			i := reach[0]
			reach = reach[1:]
			d.Nodes = append(d.Nodes, i)
			for _, j := range c.nodes[i].peers {
				if status[j] == Fail {
					continue
				}
				if i < j || status[j] != Ambiguous {
					d.Links = append(d.Links, PairOf(i, j))
				}
				if status[j] == Ambiguous && !seen[j] {
					seen[j] = true
					reach = append(reach, j)
				}
			}
		}
		slices.Sort(d.Nodes)
		slices.SortFunc(d.Links, comparePairs)
		d.explain()
		doubts = append(doubts, d)
	}
	return doubts
}

// explain looks for explanations: any set of the nodes is one, with the links that it leaves open.
func (d *Doubt) explain() {
	onlyLinks := Explanation{Links: d.Links}
	if len(d.Nodes) > mostDoubtful {
		d.Explanations = []Explanation{{Nodes: d.Nodes}, onlyLinks}
		return
	}
	all := make([]Explanation, 1<<len(d.Nodes)-1)
	for i := range all {
		all[i] = d.explanation(uint(i + 1))
	}
	slices.SortStableFunc(all, func(a, b Explanation) int {
		return cmp.Or(cmp.Compare(a.faults(), b.faults()), cmp.Compare(len(a.Links), len(b.Links)))
	})
	simplest := func(e Explanation) bool { return e.faults() == all[0].faults() }
	for _, e := range all[:min(len(all), mostExplanations-1)] {
		if simplest(e) {
			d.Explanations = append(d.Explanations, e)
		}
	}
	d.Explanations = append(d.Explanations, onlyLinks)
}

// explanation takes the nodes of set, a bit for each, as bad, and what they leave open as bad links.
func (d *Doubt) explanation(set uint) Explanation {
	e := Explanation{}
	for rest := set; rest != 0; rest &= rest - 1 {
		e.Nodes = append(e.Nodes, d.Nodes[bits.TrailingZeros(rest)])
	}
	for _, p := range d.Links {
		if !slices.Contains(e.Nodes, p.A) && !slices.Contains(e.Nodes, p.B) {
			e.Links = append(e.Links, p)
		}
	}
	return e
}

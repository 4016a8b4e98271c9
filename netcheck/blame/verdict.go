package blame

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Status is what a check says of a node, or of all.
type Status string

// The statuses.
const (
	Pass      Status = "PASS"      // passed a test with another node, now or in an earlier check
	Fail      Status = "FAIL"      // at fault
	Ambiguous Status = "AMBIGUOUS" // failed, and it may not be the node
	Skip      Status = "SKIP"      // no test speaks for or against it
)

// NodeVerdict is what a check says of a node.
type NodeVerdict struct {
	Status Status
	Reason string // for people, one line
}

// LinkVerdict is a link that failed between two good nodes.
type LinkVerdict struct {
	Pair
	// Unsteady says that it passed the second time: no fault yet, but worth a look.
	Unsteady bool
	Reason   string
}

// Verdict is what the results so far say.
type Verdict struct {
	Nodes      []NodeVerdict // by index
	Links      []LinkVerdict // faulty and unsteady ones, in order
	Doubts     []Doubt       // what AMBIGUOUS nodes have failed, and why that may be
	Stragglers []Straggler
	// Nothing says that tests were run and none passed: more likely is one cause for all of them, a firewall, the wrong
	// interface, the fabric, than that many faults.
	Nothing  bool
	Rounds   int
	Tested   int // links between nodes that did not fail
	Untested int // the others of these, which Check.Untested lists: nothing is known of them
}

// Status sums a verdict up: FAIL where a node is to blame, AMBIGUOUS where something failed for which none is, SKIP
// where nothing could be tested. Stragglers and unsteady links change nothing.
func (v *Verdict) Status() Status {
	has := func(s Status) bool {
		return slices.ContainsFunc(v.Nodes, func(n NodeVerdict) bool { return n.Status == s })
	}
	faulty := slices.ContainsFunc(v.Links, func(l LinkVerdict) bool { return !l.Unsteady })
	switch {
	case has(Fail):
		return Fail
	case has(Ambiguous) || faulty:
		return Ambiguous
	case has(Pass):
		return Pass
	}
	return Skip
}

// Verdict says what the results so far mean. Before Next has returned false nodes may be AMBIGUOUS or SKIP that further
// rounds would clear or find out.
func (c *Check) Verdict() Verdict {
	status := c.statuses()
	v := Verdict{Nodes: make([]NodeVerdict, len(c.nodes)), Rounds: c.done}
	left := 0 // nodes that did not fail
	for i, s := range status {
		v.Nodes[i].Status = s
		if s != Fail {
			left++
		}
	}
	passed := false
	for p, l := range c.links {
		passed = passed || l.passed
		if status[p.A] != Fail && status[p.B] != Fail {
			v.Tested++
		}
	}
	v.Nothing = len(c.links) > 0 && !passed
	v.Untested = left*(left-1)/2 - v.Tested
	v.Links = c.linkVerdicts()
	v.Doubts = c.doubts(status)
	v.Stragglers = c.stragglers(func(i int) bool { return status[i] == Fail })
	for i := range v.Nodes {
		v.Nodes[i].Reason = c.reason(i, status)
	}
	return v
}

// statuses judges the nodes.
func (c *Check) statuses() []Status {
	status := make([]Status, len(c.nodes))
	suspects, good, spare := c.suspects(), c.good(), c.spare()
	for i := range c.nodes {
		n := &c.nodes[i]
		switch {
		case n.fault != "":
			status[i] = Fail
		case n.good || n.cleared && len(n.peers) == 0:
			status[i] = Pass
		case c.proofs(i) >= proof, n.drawn && c.decided(i, good, spare) && len(c.untested(i, suspects)) == 0:
			status[i] = Fail
		default:
			status[i] = Skip
		}
	}
	for i, s := range status {
		if s == Skip && slices.ContainsFunc(c.nodes[i].peers, func(j int) bool { return status[j] != Fail }) {
			status[i] = Ambiguous
		}
	}
	return status
}

// Untested yields the links that were not tested, between nodes that have not failed.
func (c *Check) Untested() iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		status := c.statuses()
		for a := range c.nodes {
			for b := a + 1; b < len(c.nodes); b++ {
				if status[a] != Fail && status[b] != Fail && !c.tested(a, b) && !yield(Pair{a, b}) {
					return
				}
			}
		}
	}
}

func (c *Check) linkVerdicts() (links []LinkVerdict) {
	for p, l := range c.links {
		switch {
		case !l.failed || !c.nodes[p.A].good || !c.nodes[p.B].good || !c.usable(p.A) || !c.usable(p.B):
		case l.passed:
			links = append(links, LinkVerdict{Pair: p, Unsteady: true, Reason: "failed at first, passed the second time" + c.said(p)})
		case l.tries > 1:
			links = append(links, LinkVerdict{Pair: p, Reason: "failed twice between two nodes that pass with others" + c.said(p)})
		default:
			links = append(links,
				LinkVerdict{Pair: p, Reason: "failed between two nodes that pass with others, and was not tried again" + c.said(p)})
		}
	}
	slices.SortFunc(links, func(a, b LinkVerdict) int { return comparePairs(a.Pair, b.Pair) })
	return links
}

// reason explains the status of node i.
func (c *Check) reason(i int, status []Status) string {
	n := &c.nodes[i]
	var passed, good, others []int // peers: passed with, failed with good ones, failed with others
	for _, j := range n.peers {
		switch {
		case !c.bad(PairOf(i, j)):
			passed = append(passed, j)
		case c.nodes[j].good && c.usable(j):
			good = append(good, j)
		default:
			others = append(others, j)
		}
	}
	switch status[i] {
	case Pass:
		switch {
		case len(n.peers) == 0:
			return "cleared by an earlier check, not tested in this one"
		case len(good) > 0:
			return fmt.Sprintf("passed with %s; with %s the link is at fault", c.names(passed), c.names(good))
		}
		return "passed with " + c.names(passed)
	case Fail:
		if n.fault != "" {
			return n.fault
		}
		said := c.said(PairOf(i, good[0]))
		if len(good) < proof { // as few as that, and still at fault: a node that cannot reach anybody is of no use either way
			return fmt.Sprintf("failed with %s, which pass with each other and are the only ones that pass; were both its links to them "+
				"bad, it would look the same%s",
				c.names(good), said)
		}
		return fmt.Sprintf("failed with %s, which pass with others%s", c.names(good), said)
	case Ambiguous:
		doubt := slices.DeleteFunc(append(good, others...), func(j int) bool { return status[j] == Fail })
		return fmt.Sprintf("failed with %s, which may be the fault of either or of what is between them%s", c.names(doubt),
			c.said(PairOf(i, doubt[0])))
	default:
	}
	switch {
	case len(n.peers) > 0:
		return "was only tested with " + c.names(n.peers) + ", at fault by what others say"
	case len(c.nodes) == 1:
		return "a single node has nobody to be tested with"
	case n.cleared:
		return "cleared by an earlier check, not tested in this one"
	case c.done == 0 && !c.over:
		return "not tested yet"
	}
	return "nobody was left to test it with"
}

// said is what the nodes of a failed pair had to say, "" for nothing.
func (c *Check) said(p Pair) string {
	l := c.links[p]
	var texts []string
	for side, i := range []int{p.A, p.B} {
		switch r := l.said[side]; {
		case r.Outcome == Missing:
			texts = append(texts, c.ids[i]+" reported nothing")
		case r.Outcome == Failed && r.Err != "":
			texts = append(texts, c.ids[i]+" said: "+r.Err)
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, "; ") + ")"
}

// names lists nodes for people, by index, the first few if they are many.
func (c *Check) names(nodes []int) string {
	const most = 5
	sorted := slices.Sorted(slices.Values(nodes))
	var names []string
	for _, i := range sorted[:min(len(sorted), most)] {
		names = append(names, c.ids[i])
	}
	if more := len(sorted) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

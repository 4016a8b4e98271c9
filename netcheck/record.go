package netcheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/internal/check"
	"muster/internal/errhint"
	"muster/netcheck/blame"
)

// Status is what a check says of a node.
type Status = blame.Status

// The statuses, those of blame.
const (
	Pass      = blame.Pass
	Fail      = blame.Fail
	Ambiguous = blame.Ambiguous
	Skip      = blame.Skip
)

const (
	statusFaulty    = errhint.Faulty
	statusStraggler = errhint.Straggler
	statusUndecided = errhint.Undecided
)

// Record is a check and its verdict, the same on every node. Nodes are by group rank; everything else names them by
// that.
type Record struct {
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took_ns"`
	// Fake says that the hardware was not real, and which it was instead.
	Fake  string       `json:"fake,omitempty"`
	Nodes []NodeRecord `json:"nodes"`
	// Links are those that this check tested.
	Links []LinkRecord `json:"links,omitempty"`
	// Rounds is how many rounds of pairs there were, Untested how many links nothing is known of.
	Rounds     int               `json:"rounds"`
	Untested   int               `json:"untested"`
	Stragglers []StragglerRecord `json:"stragglers,omitempty"`
	// Probes are what was not in order in the network between nodes that were tested.
	Probes []check.Result `json:"probes,omitempty"`
	// Undecided says why nobody can be blamed for what failed, a line for each thing that would explain it; the job
	// cannot go on. Empty: nothing of the kind.
	Undecided []string `json:"undecided,omitempty"`
	// Perf is the bandwidth of all nodes together, PerfErr why it could not be measured.
	Perf    []Timing `json:"perf,omitempty"`
	PerfErr string   `json:"perf_err,omitempty"`
}

// NodeRecord is what a check says of a node.
type NodeRecord struct {
	Node string `json:"node"`
	// IDs are those of its accelerators.
	IDs    []string `json:"ids,omitempty"`
	Status Status   `json:"status"`
	Reason string   `json:"reason"`
	// Fault is why the node is not to take part; nil: it is.
	Fault *Fault `json:"fault,omitempty"`
	// Unable is why nothing could be tested, on no node; empty: it could.
	Unable string `json:"unable,omitempty"`
	Local  Local  `json:"local"`
}

// LinkRecord is what a check says of a link.
type LinkRecord struct {
	A      int    `json:"a"`
	B      int    `json:"b"`
	Failed int    `json:"failed"` // tests
	Passed int    `json:"passed"`
	Best   Timing `json:"best"` // of those that passed
	// Err is what was said of the last one that failed.
	Err string `json:"err,omitempty"`
	// Faulty says that the link is to blame, and not one of its nodes.
	Faulty bool `json:"faulty,omitempty"`
}

// StragglerRecord is a node that works, but slowly.
type StragglerRecord struct {
	Node     int           `json:"node"`
	Resource string        `json:"resource"`
	Took     time.Duration `json:"took_ns"`
	Others   time.Duration `json:"others_ns"`
}

// Fit reports whether every node may take part.
func (r *Record) Fit() bool {
	return len(r.Undecided) == 0 && !slices.ContainsFunc(r.Nodes, func(n NodeRecord) bool { return n.Fault != nil })
}

// take adds the test of a pair.
func (r *Record) take(of blame.Result, a, b Timing) {
	i := slices.IndexFunc(r.Links, func(l LinkRecord) bool { return l.A == of.Pair.A && l.B == of.Pair.B })
	if i < 0 {
		i = len(r.Links)
		r.Links = append(r.Links, LinkRecord{A: of.Pair.A, B: of.Pair.B})
	}
	l := &r.Links[i]
	if of.A.Outcome == blame.OK && of.B.Outcome == blame.OK {
		l.Passed++
		slower := a
		if b.Took > a.Took {
			slower = b
		}
		if l.Best.Took == 0 || slower.Took < l.Best.Took {
			l.Best = slower
		}
		return
	}
	l.Failed++
	l.Err = cmp.Or(of.A.Err, of.B.Err)
}

// judge says what the results mean for the nodes.
func (l *leader) judge(b *blame.Check) {
	v, rec := b.Verdict(), &l.rec
	rec.Rounds, rec.Untested = v.Rounds, v.Untested
	faulty := false
	for i, n := range v.Nodes {
		r := &rec.Nodes[i]
		r.Status, r.Reason = n.Status, n.Reason
		switch {
		case l.nodes[i].Fault != nil:
			r.Fault = l.nodes[i].Fault
		case n.Status == Fail:
			r.Fault = &Fault{Status: statusFaulty, Reason: n.Reason}
		case n.Status == Skip && r.Unable == "" && l.size == 1:
			r.Status, r.Reason = Pass, "its own tests have passed"
		}
		faulty = faulty || r.Fault != nil
	}
	for _, s := range v.Stragglers {
		rec.Stragglers = append(rec.Stragglers, StragglerRecord{s.Node, string(s.Resource), s.Took, s.Others})
		if n := &rec.Nodes[s.Node]; l.cfg.Rules.ExcludeStraggler && n.Fault == nil {
			faulty = true
			n.Fault = &Fault{Status: statusStraggler, Reason: fmt.Sprintf("a straggler: its %s test took %v, that of the others %v",
				s.Resource, s.Took.Round(time.Microsecond), s.Others.Round(time.Microsecond))}
		}
	}
	if !faulty { // else those at fault go first, and the rest is looked at again
		rec.undecided(b, &v)
	}
	l.spare(&v)
}

// undecided collects what failed, and what would explain it.
func (r *Record) undecided(b *blame.Check, v *blame.Verdict) {
	if v.Nothing {
		r.Undecided = append(r.Undecided,
			"no test of any two nodes has passed: more likely than that all are bad is one cause for all of it, such as a firewall, the "+
				"wrong network interface, or the fabric")
	}
	for _, d := range v.Doubts {
		var texts []string
		for _, e := range d.Explanations {
			texts = append(texts, b.Text(e))
		}
		r.Undecided = append(r.Undecided, "either "+strings.Join(texts, "; or "))
	}
	if len(r.Undecided) == 0 {
		return
	}
	for _, l := range r.Links {
		if l.Failed > 0 && l.Err != "" {
			r.Undecided = append(r.Undecided, fmt.Sprintf("%s and %s: %s", r.Nodes[l.A].Node, r.Nodes[l.B].Node, l.Err))
			break
		}
	}
}

// spare takes nodes out until no faulty link is left: as few as possible.
func (l *leader) spare(v *blame.Verdict) {
	var bad [][2]int
	for _, link := range v.Links {
		if link.Unsteady {
			continue
		}
		for i := range l.rec.Links {
			if r := &l.rec.Links[i]; r.A == link.A && r.B == link.B {
				r.Faulty = true
			}
		}
		if l.rec.Nodes[link.A].Fault == nil && l.rec.Nodes[link.B].Fault == nil {
			bad = append(bad, [2]int{link.A, link.B})
		}
	}
	for _, i := range cover(bad) {
		var peers, hosts []string
		for _, p := range bad {
			if p[0] == i || p[1] == i {
				other := p[0] + p[1] - i
				peers, hosts = append(peers, l.rec.Nodes[other].Node), append(hosts, l.nodes[other].Node)
			}
		}
		l.rec.Nodes[i].Fault = &Fault{
			Status: statusUndecided, Peers: hosts, Reason: "its link to " + strings.Join(peers, ", ") +
				" is bad, so that one of the two has to go",
		}
	}
}

// mostExact is up to how many links the smallest cover is looked for.
const mostExact = 20

// cover returns nodes such that each link has one of them, as few as possible where there are at most mostExact links.
// Of covers of a size the one with the higher ranks is taken: rank 0 leads, and its node may serve the store.
func cover(links [][2]int) []int {
	if len(links) == 0 {
		return nil
	}
	without := func(node int) (rest [][2]int) {
		for _, l := range links {
			if l[0] != node && l[1] != node {
				rest = append(rest, l)
			}
		}
		return rest
	}
	if len(links) > mostExact { // the node with most links first
		count, best := map[int]int{}, -1
		for _, l := range links {
			for _, n := range l {
				if count[n]++; best < 0 || count[n] > count[best] || count[n] == count[best] && n > best {
					best = n
				}
			}
		}
		return append(cover(without(best)), best)
	}
	high, low := max(links[0][0], links[0][1]), min(links[0][0], links[0][1])
	a, b := append(cover(without(high)), high), append(cover(without(low)), low)
	if len(b) < len(a) {
		return b
	}
	return a
}

package blame_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/netcheck/blame"
	"muster/netcheck/blame/blamesim"
)

// transcript runs a check in a world and writes down what happens.
func transcript(t *testing.T, w blamesim.World, c *blame.Check) string {
	t.Helper()
	var b strings.Builder
	rounds, err := w.Run(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rounds {
		fmt.Fprintf(&b, "round %d:", r.Number)
		for _, p := range r.Pairs {
			fmt.Fprintf(&b, " %d-%d", p.A, p.B)
		}
		b.WriteString("\n")
	}
	v := c.Verdict()
	fmt.Fprintf(&b, "%s, %d untested\n", v.Status(), v.Untested)
	for i, n := range v.Nodes {
		fmt.Fprintf(&b, "%d %s %s\n", i, n.Status, n.Reason)
	}
	for _, l := range v.Links {
		fmt.Fprintf(&b, "link %d-%d %s\n", l.A, l.B, l.Reason)
	}
	for _, d := range v.Doubts {
		for _, e := range d.Explanations {
			fmt.Fprintf(&b, "either %s\n", c.Text(e))
		}
	}
	for _, s := range v.Stragglers {
		fmt.Fprintf(&b, "straggler %d %s %v, others %v\n", s.Node, s.Resource, s.Took, s.Others)
	}
	if v.Nothing {
		b.WriteString("nothing passed\n")
	}
	return b.String()
}

func TestSmall(t *testing.T) {
	link := func(w blamesim.World, a, b int) blamesim.World {
		w.Links[blame.PairOf(a, b)] = true
		return w
	}
	tests := []struct {
		name  string
		world blamesim.World
		opts  blame.Options
		local []blame.Local
		want  string
	}{
		{name: "no node", world: blamesim.New(0), want: "SKIP, 0 untested\n"},
		{name: "one node", world: blamesim.New(1), want: `
SKIP, 0 untested
0 SKIP a single node has nobody to be tested with
`},
		{name: "one node at fault by itself", world: blamesim.New(1), local: []blame.Local{{Node: 0, Err: "no GPU 3"}}, want: `
FAIL, 0 untested
0 FAIL no GPU 3
`},
		{name: "two nodes", world: blamesim.New(2), want: `
round 0: 0-1
PASS, 0 untested
0 PASS passed with node1
1 PASS passed with node0
`},
		{name: "two nodes, a failure", world: blamesim.New(2, 1), want: `
round 0: 0-1
AMBIGUOUS, 0 untested
0 AMBIGUOUS failed with node1, which may be the fault of either or of what is between them (node0 said: no answer; node1 said: no answer)
1 AMBIGUOUS failed with node0, which may be the fault of either or of what is between them (node0 said: no answer; node1 said: no answer)
either node node0 is bad
either node node1 is bad
either the link between node0 and node1 is bad
nothing passed
`},
		{name: "two nodes, one at fault by itself", world: blamesim.New(2), local: []blame.Local{{Node: 1, Err: "no GPU 3"}}, want: `
FAIL, 0 untested
0 SKIP nobody was left to test it with
1 FAIL no GPU 3
`},
		{name: "three nodes", world: blamesim.New(3), want: `
round 0: 1-2
round 1: 0-2
PASS, 1 untested
0 PASS passed with node2
1 PASS passed with node2
2 PASS passed with node0 and node1
`},
		{name: "three nodes, one bad", world: blamesim.New(3, 2), want: `
round 0: 1-2
round 1: 0-2
round 2: 0-1
FAIL, 0 untested
0 PASS passed with node1
1 PASS passed with node0
2 FAIL failed with node0 and node1, which pass with each other and are the only ones that pass; ` +
			`were both its links to them bad, it would look the same (node1 said: no answer; node2 said: no answer)
`},
		{name: "three nodes, one bad link", world: link(blamesim.New(3), 1, 2), want: `
round 0: 1-2
round 1: 0-2
round 2: 0-1
round 3: 1-2
AMBIGUOUS, 0 untested
0 PASS passed with node1 and node2
1 PASS passed with node0; with node2 the link is at fault
2 PASS passed with node0; with node1 the link is at fault
link 1-2 failed twice between two nodes that pass with others (node1 said: no answer; node2 said: no answer)
`},
		{name: "three nodes, one bad and a bad link between the others", world: link(blamesim.New(3, 2), 0, 1), want: `
round 0: 1-2
round 1: 0-2
round 2: 0-1
AMBIGUOUS, 0 untested
0 AMBIGUOUS failed with node1 and node2, which may be the fault of either or of what is between them ` +
			`(node0 said: no answer; node2 said: no answer)
1 AMBIGUOUS failed with node0 and node2, which may be the fault of either or of what is between them ` +
			`(node1 said: no answer; node2 said: no answer)
2 AMBIGUOUS failed with node0 and node1, which may be the fault of either or of what is between them ` +
			`(node1 said: no answer; node2 said: no answer)
either nodes node0 and node1 are bad
either nodes node0 and node2 are bad
either nodes node1 and node2 are bad
either node node0 is bad, the link between node1 and node2 is bad
either node node1 is bad, the link between node0 and node2 is bad
either node node2 is bad, the link between node0 and node1 is bad
either the link between node0 and node1 is bad, the link between node0 and node2 is bad, the link between node1 and node2 is bad
nothing passed
`},
		{name: "four nodes, all links", world: blamesim.New(4), opts: blame.Options{Full: true}, want: `
round 0: 0-3 1-2
round 1: 0-2 1-3
round 2: 0-1 2-3
PASS, 0 untested
0 PASS passed with node1, node2 and node3
1 PASS passed with node0, node2 and node3
2 PASS passed with node0, node1 and node3
3 PASS passed with node0, node1 and node2
`},
		{
			name: "two new nodes of six", world: blamesim.New(6),
			opts: blame.Options{Cleared: []string{"node0", "node1", "node2", "node4", "elsewhere"}},
			want: `
round 0: 0-5 1-3
round 1: 0-3 1-5
PASS, 11 untested
0 PASS passed with node3 and node5
1 PASS passed with node3 and node5
2 PASS cleared by an earlier check, not tested in this one
3 PASS passed with node0 and node1
4 PASS cleared by an earlier check, not tested in this one
5 PASS passed with node0 and node1
`,
		},
		{
			name: "one new node of six, bad", world: blamesim.New(6, 3),
			opts: blame.Options{Cleared: []string{"node0", "node1", "node2", "node4", "node5"}},
			want: `
round 0: 0-3
round 1: 0-1 2-3
round 2: 1-2 3-4
round 3: 1-3 2-4
FAIL, 7 untested
0 PASS passed with node1
1 PASS passed with node0 and node2
2 PASS passed with node1 and node4
3 FAIL failed with node0, node1, node2 and node4, which pass with others (node0 said: no answer; node3 said: no answer)
4 PASS passed with node2
5 PASS cleared by an earlier check, not tested in this one
`,
		},
		{
			name: "nothing new", world: blamesim.New(2), opts: blame.Options{Cleared: []string{"node0", "node1"}},
			want: `
PASS, 1 untested
0 PASS cleared by an earlier check, not tested in this one
1 PASS cleared by an earlier check, not tested in this one
`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCheck(len(tt.world.Bad), tt.opts)
			if err := c.RecordLocal(tt.local); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), transcript(t, tt.world, c)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestUnsteady has a link that fails once.
func TestUnsteady(t *testing.T) {
	w, c := blamesim.New(6), newCheck(6, blame.Options{})
	r, _ := c.Next()
	var results []blame.Result
	for _, p := range r.Pairs[1:] {
		results = append(results, w.Test(p))
	}
	if err := c.Record(results); err != nil { // nothing is heard of the first pair
		t.Fatal(err)
	}
	for r, more := c.Next(); more; r, more = c.Next() {
		results = nil
		for _, p := range r.Pairs {
			results = append(results, w.Test(p))
		}
		if err := c.Record(results); err != nil {
			t.Fatal(err)
		}
	}
	v := c.Verdict()
	want := []blame.LinkVerdict{{
		Pair: r.Pairs[0], Unsteady: true,
		Reason: "failed at first, passed the second time (node0 reported nothing; node5 reported nothing)",
	}}
	if diff := cmp.Diff(want, v.Links); diff != "" || v.Status() != blame.Pass || v.Rounds != 3 {
		t.Errorf("%s in %d rounds; links (-want +got)\n%s", v.Status(), v.Rounds, diff)
	}
}

// TestPartition cuts all links between two halves: nobody is bad.
func TestPartition(t *testing.T) {
	for _, n := range []int{12, 16, 32, 33, 64} {
		w, c := blamesim.New(n), newCheck(n, blame.Options{})
		for _, p := range allPairs(n) {
			if p.A < n/2 && p.B >= n/2 {
				w.Links[p] = true
			}
		}
		if _, err := w.Run(c); err != nil {
			t.Fatal(err)
		}
		v := c.Verdict()
		for i, node := range v.Nodes {
			if node.Status != blame.Pass {
				t.Errorf("node %d of %d is %s: %s", i, n, node.Status, node.Reason)
			}
		}
		if len(v.Links) < n/2 || v.Status() != blame.Ambiguous {
			t.Errorf("%d nodes: %s, links %v", n, v.Status(), v.Links)
		}
	}
}

// TestRackCutOff cuts a few neighbours off from the rest: nobody is bad.
func TestRackCutOff(t *testing.T) {
	for size := 4; size <= 8; size++ {
		for first := range 32 - size + 1 {
			w, c := blamesim.New(32), newCheck(32, blame.Options{})
			in := func(i int) bool { return i >= first && i < first+size }
			for _, p := range allPairs(32) {
				if in(p.A) != in(p.B) {
					w.Links[p] = true
				}
			}
			if _, err := w.Run(c); err != nil {
				t.Fatal(err)
			}
			for i, node := range c.Verdict().Nodes {
				if node.Status != blame.Pass {
					t.Errorf("%d nodes from %d on are cut off: node %d is %s: %s", size, first, i, node.Status, node.Reason)
				}
			}
		}
	}
}

// TestLarge has far more nodes than are promised: a few of them bad, half of them, all.
func TestLarge(t *testing.T) {
	testutil.Long(t)
	const n = 2000
	for _, k := range []int{0, 6, n / 2, n} {
		w, c := blamesim.New(n, rand.New(rand.NewPCG(1, 3)).Perm(n)[:k]...), newCheck(n, blame.Options{})
		start := time.Now()
		rounds, err := w.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		v := c.Verdict()
		if k <= 6 {
			err = checkExact(w, v)
		} else {
			err = checkSound(w, v)
		}
		if err != nil {
			t.Error(err)
		}
		if v.Nothing != (k == n) {
			t.Errorf("%d of %d nodes are bad, and that nothing passed is %t", k, n, v.Nothing)
		}
		found := 0
		for _, node := range v.Nodes {
			if node.Status == blame.Fail {
				found++
			}
		}
		t.Logf("%d of %d nodes bad: %d found in %d rounds, %v", k, n, found, len(rounds), time.Since(start).Round(time.Millisecond))
	}
}

func TestWrongUse(t *testing.T) {
	if _, err := blame.New([]string{"a", "b", "a"}, blame.Options{Factor: 0.5, Rule: 7}); err == nil ||
		!strings.Contains(err.Error(), `two nodes have the id "a"`) ||
		!strings.Contains(err.Error(), "straggler factor is 0.5") || !strings.Contains(err.Error(), "no straggler rule 7") {
		t.Errorf("got %v", err)
	}
	c := newCheck(4, blame.Options{})
	if err := c.Record(nil); err == nil {
		t.Error("results are recorded although no round is under way")
	}
	if err := c.RecordLocal([]blame.Local{{Node: 4}}); err == nil {
		t.Error("a local result of node 4 of 4 is recorded")
	}
	first, _ := c.Next()
	ok := blamesim.New(4).Test(first.Pairs[0])
	for _, results := range [][]blame.Result{
		{ok, ok},
		{{Pair: blame.Pair{A: 0, B: 1}}},
		{{Pair: blame.Pair{A: 3, B: 0}}},
		{{Pair: blame.Pair{A: -1, B: 9}}},
	} {
		if err := c.Record(results); err == nil {
			t.Errorf("%v is recorded", results)
		}
	}
	if err := c.RecordLocal(nil); err == nil {
		t.Error("local results are recorded in the middle of a round")
	}
	if again, _ := c.Next(); !cmp.Equal(first, again) {
		t.Errorf("round is %v, then %v", first, again)
	}
	if peer, in := first.Peer(first.Pairs[1].B); !in || peer != first.Pairs[1].A {
		t.Errorf("peer is %d, %t", peer, in)
	}
	if _, in := first.Peer(4); in {
		t.Error("a node that is none has a peer")
	}
}

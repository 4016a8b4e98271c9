package membership

import (
	"fmt"
	"math"
	"testing"
	"time"

	"muster/rendezvous"
)

func reviewRules(minNodes, maxNodes int) rules {
	return rules{
		min: minNodes, max: maxNodes, unit: 1, lastCall: 3 * time.Second, patience: 5 * time.Second, replaceLimit: -1, backoffLimit: -1,
		fence: time.Second, fenced: 2 * time.Second, order: inOrder,
	}
}

func reviewRec(i, rank int) joinRecord {
	return joinRecord{
		Agent: fmt.Sprint("agent", i), Node: fmt.Sprint("node", i), Addr: fmt.Sprint("10.0.0.", i), Workers: 1,
		NodeRank: rank, Round: -1,
	}
}

// TestTwoLostAtOnce: two nodes are lost in one look, and one may be.
func TestTwoLostAtOnce(t *testing.T) {
	r := newRoster(reviewRules(2, 4))
	r.replaceLimit = 1
	for i := range 4 {
		r.join(0, int64(i+1), reviewRec(i, -1))
	}
	if e := r.settle(0); len(e) != 1 || e[0].begin == nil {
		t.Fatalf("%+v", e)
	}
	r.lost(10*time.Second, "agent2", goesSilent)
	r.lost(10*time.Second, "agent3", goesSilent)
	for _, e := range r.settle(10 * time.Second) {
		if e.propose != nil {
			r.end(*e.propose)
		}
	}
	for i := range 2 {
		rec := reviewRec(i, -1)
		rec.Round, rec.Rank, rec.Size = 0, i, 4
		r.join(13*time.Second, int64(i+10), rec)
	}
	for _, e := range r.settle(13 * time.Second) {
		if e.begin != nil {
			t.Errorf("round %d begins after %d lost nodes, the limit is %d", e.begin.number, r.replacements, r.replaceLimit)
		}
	}
}

// TestLateProposal: a node has heard a verdict before the coordinator, and joins; all others join and the verdict comes
// in the same turn of its loop. What is proposed then is about the round that is over, not about the next one.
func TestLateProposal(t *testing.T) {
	r := newRoster(reviewRules(2, 2))
	for i := range 2 {
		r.join(0, int64(i+1), reviewRec(i, -1))
	}
	r.settle(0)
	r.join(time.Second, 3, reviewRec(0, -1))
	r.end(rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: 1})
	r.join(time.Second, 4, reviewRec(1, -1))
	begins := false
	for _, e := range r.settle(time.Second) {
		if e.propose != nil && e.round != 0 {
			t.Errorf("round %d is to end by %+v", e.round, *e.propose)
		}
		begins = begins || e.begin != nil && e.begin.number == 1
	}
	if !begins {
		t.Error("no next round begins")
	}
}

// TestFixedQuadratic: what one wake of the coordinator costs when many nodes with fixed ranks wait.
func TestFixedQuadratic(t *testing.T) {
	cost := func(n int, fixed bool) time.Duration {
		ru := reviewRules(n+1, n+1)
		ru.fixed = fixed
		r := newRoster(ru)
		for i := range n {
			rank := -1
			if fixed {
				rank = i
			}
			r.join(0, int64(i+1), reviewRec(i, rank))
		}
		began := time.Now()
		r.settle(time.Second)
		r.wake(time.Second)
		return time.Since(began)
	}
	free, fixed := cost(4000, false), time.Duration(math.MaxInt64)
	for range 5 { // another process may have the processor meanwhile
		fixed = min(fixed, cost(4000, true))
	}
	t.Logf("4,000 waiting nodes, one turn of the loop: %v, with fixed ranks %v", free, fixed)
	if fixed > 20*free && fixed > 100*time.Millisecond {
		t.Errorf("one turn of the loop takes %v", fixed)
	}
}

// TestLateNewcomerLeaves: nothing of a spare's leaving counts.
func TestLeftCounts(t *testing.T) {
	r := newRoster(reviewRules(1, 2))
	r.replaceLimit = 0
	for i := range 2 {
		r.join(0, int64(i+1), reviewRec(i, -1))
	}
	r.settle(0)
	r.lost(10*time.Second, "agent1", goesLeft)
	for _, e := range r.settle(10 * time.Second) {
		if e.propose != nil && e.propose.Kind == rendezvous.Fail {
			t.Errorf("a node has left by itself: %+v", e.propose)
		}
	}
}

// TestSurvivorOfAnotherStore: a fresh store has run its round 0, and a node comes that was in round 0 of the store
// before. It is taken for a survivor of this round.
func TestSurvivorOfAnotherStore(t *testing.T) {
	ru := reviewRules(2, 4)
	var survivors []Placement
	ru.order = func(p []Placement) []int {
		survivors = p
		order := make([]int, len(p))
		for i := range order {
			order[i] = i
		}
		return order
	}
	r := newRoster(ru)
	r.join(0, 1, reviewRec(1, -1))
	r.join(0, 2, reviewRec(2, -1))
	if e := r.settle(4 * time.Second); len(e) != 1 || e[0].begin == nil {
		t.Fatalf("%+v", e)
	}
	for i := range 2 { // two of seven, at another store
		rec := reviewRec(i+10, -1)
		rec.Round, rec.Rank, rec.Size = 0, i, 7
		r.join(5*time.Second, int64(i+3), rec)
	}
	for _, e := range r.settle(5 * time.Second) {
		if e.propose != nil {
			r.end(*e.propose)
		}
	}
	for i := range 2 {
		rec := reviewRec(i+1, -1)
		rec.Round, rec.Rank, rec.Size = 0, i, 2
		r.join(6*time.Second, int64(i+10), rec)
	}
	r.settle(6 * time.Second)
	ranks := map[int]string{}
	for _, p := range survivors {
		if other := ranks[p.Rank]; p.Survivor && other != "" {
			t.Errorf("%s and %s had rank %d in the round before", other, p.Addr, p.Rank)
		}
		if p.Survivor {
			ranks[p.Rank] = p.Addr
		}
	}
}

// TestSubject: a verdict names the one node that has come, or was lost, and not the coordinator that says so.
func TestSubject(t *testing.T) {
	said := func(effects []effect) rendezvous.Verdict {
		for _, e := range effects {
			if e.propose != nil {
				return *e.propose
			}
		}
		t.Fatalf("no verdict: %+v", effects)
		return rendezvous.Verdict{}
	}
	for name, c := range map[string]struct {
		happens func(r *roster)
		want    string
	}{
		"one is lost": {func(r *roster) { r.lost(time.Minute, "agent1", goesSilent) }, "node1"},
		"one with another name in brackets is lost": {func(r *roster) { r.lost(time.Minute, "agent9", goesSilent) }, "rack 3 (left)"},
		"one comes": {func(r *roster) { r.join(time.Minute, 3, reviewRec(2, -1)) }, "node2"},
		"two come": {func(r *roster) {
			r.join(time.Minute, 3, reviewRec(2, -1))
			r.join(time.Minute, 4, reviewRec(3, -1))
		}, ""},
		"one is back": {func(r *roster) {
			rec := reviewRec(1, -1)
			rec.Round = 0
			r.join(time.Minute, 3, rec)
		}, "node1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoster(reviewRules(1, 5))
			for i := range 2 {
				r.join(0, int64(i+1), reviewRec(i, -1))
			}
			brackets := reviewRec(9, -1)
			brackets.Node = "rack 3 (left)"
			r.join(0, 9, brackets)
			r.settle(3 * time.Second)
			c.happens(r)
			if v := said(r.settle(2 * time.Minute)); v.Subject != c.want {
				t.Errorf("%+v is about %q, want %q", v, v.Subject, c.want)
			}
		})
	}
}

// TestNodeNames: people read a node's name, with its address where the name is none.
func TestNodeNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ node, addr, want string }{
		{"node1", "10.0.0.1", "node1 (10.0.0.1)"},
		{"node1", "", "node1"},
		{"node1", "node1", "node1"},
		{"127.0.0.2", "127.0.0.1", "127.0.0.2"}, // a node of a rehearsal
		{"fd00::2", "10.0.0.1", "fd00::2"},
	} {
		if got := (joinRecord{Node: c.node, Addr: c.addr}).String(); got != c.want {
			t.Errorf("a node called %s at %s is %q, want %q", c.node, c.addr, got, c.want)
		}
	}
}

// TestWanted: a node that was started as more nodes are wanted than the job was to have ends the round for itself; what was
// wanted becomes an order, unless somebody has wanted something else since.
func TestWanted(t *testing.T) {
	t.Parallel()
	paused := func(version, nodes int) rendezvous.Orders {
		return rendezvous.Orders{Version: version, Nodes: nodes, Pauses: 1}
	}
	newcomer := func(i, wants int) joinRecord {
		rec := reviewRec(i, -1)
		rec.Wants = wants
		return rec
	}
	for name, c := range map[string]struct {
		wants int
		since rendezvous.Orders // of another verdict, while it waits
		nodes int               // of the next round
		want  rendezvous.Orders
	}{
		"nothing":                {0, rendezvous.Orders{}, 0, rendezvous.Orders{}},
		"no more":                {2, rendezvous.Orders{}, 0, rendezvous.Orders{}},
		"one more":               {3, rendezvous.Orders{}, 3, rendezvous.Orders{Version: 2, Nodes: 3}},
		"as many as there may":   {4, rendezvous.Orders{}, 3, rendezvous.Orders{Version: 2}},
		"more than there may be": {9, rendezvous.Orders{}, 3, rendezvous.Orders{Version: 2}},
		"another order":          {3, paused(2, 2), 3, paused(3, 3)},
		"fewer since":            {3, rendezvous.Orders{Version: 2, Nodes: 1}, 1, rendezvous.Orders{Version: 2, Nodes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoster(reviewRules(1, 4))
			r.orders = rendezvous.Orders{Version: 1, Nodes: 2}
			for i := range 2 {
				r.join(0, int64(i+1), reviewRec(i, -1))
			}
			r.settle(time.Hour)
			r.join(time.Hour, 3, newcomer(2, c.wants))
			ends := r.settle(2 * time.Hour)
			if c.nodes == 0 {
				if len(ends) != 0 {
					t.Errorf("the round ends: %+v", ends)
				}
				return
			}
			if len(ends) != 1 || ends[0].propose == nil {
				t.Fatalf("the round does not end: %+v", ends)
			}
			r.end(rendezvous.Verdict{Kind: rendezvous.Reassemble, Rank: -1, Orders: c.since})
			for i := range 2 {
				rec := reviewRec(i, -1)
				rec.Round, rec.Rank, rec.Size, rec.Agents = 0, i, 2, 2
				r.join(3*time.Hour, int64(i+4), rec)
			}
			r.settle(4 * time.Hour)
			if r.size != c.nodes || r.orders != c.want || r.wanted != 0 {
				t.Errorf("%d nodes, %+v, want %d, %+v", r.size, r.orders, c.nodes, c.want)
			}
		})
	}
}

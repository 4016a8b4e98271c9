package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"muster/rendezvous"
)

// crowd is the agents of one random job and what they may rely on.
type crowd struct {
	t       *rapid.T
	r       *roster
	now     time.Duration
	tickets int64
	open    map[int64]string   // tickets without an answer, by agent
	alive   map[string]*person // agents by id
	born    int
	round   int // the last one that began, -1 before
	verdict bool
	ended   bool
}

// person is one agent.
type person struct {
	rec  joinRecord
	in   bool // a member of the running round
	wait bool
}

func (c *crowd) spawn() {
	c.born++
	p := &person{rec: joinRecord{
		Agent: fmt.Sprint("agent", c.born), Node: fmt.Sprint("node", c.born), Addr: fmt.Sprint("10.0.0.", c.born),
		Workers: rapid.IntRange(1, 4).Draw(c.t, "workers"), NodeRank: -1, Round: -1, Min: c.r.min, Max: c.r.max,
		Role: rapid.SampledFrom([]string{"a", "b"}).Draw(c.t, "role"),
	}}
	if c.r.fixed {
		p.rec.NodeRank = rapid.IntRange(0, c.r.max-1).Draw(c.t, "node rank")
	}
	p.rec.Prefers = rapid.IntRange(0, c.r.max+1).Draw(c.t, "preferred rank and one")
	c.alive[p.rec.Agent] = p
	c.join(p)
}

func (c *crowd) join(p *person) {
	c.tickets++
	c.open[c.tickets] = p.rec.Agent
	p.wait = true
	c.r.join(c.now, c.tickets, p.rec)
}

// some returns a random agent of those that f takes, nil for none.
func (c *crowd) some(f func(*person) bool) *person {
	var ids []string
	for id, p := range c.alive {
		if f(p) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return c.alive[rapid.SampledFrom(ids).Draw(c.t, "agent")]
}

// settle takes in the effects and checks them.
func (c *crowd) settle() {
	for _, e := range c.r.settle(c.now) {
		switch {
		case e.reply != nil && e.reply.answer.Again: // to one that is silent
		case e.reply != nil:
			c.answered(e.reply.ticket)
		case e.propose != nil:
			if c.ended || c.round < 0 || c.verdict {
				c.t.Fatalf("proposes %+v when no round runs", e.propose)
			}
			c.end(*e.propose)
		case e.begin != nil:
			c.begin(e.begin)
		}
	}
	if c.r.wake(c.now) < 0 {
		c.t.Fatalf("is to be woken %v ago", -c.r.wake(c.now))
	}
}

func (c *crowd) answered(ticket int64) *person {
	agent, ok := c.open[ticket]
	if !ok {
		c.t.Fatalf("ticket %d is answered twice, or was never drawn", ticket)
	}
	delete(c.open, ticket)
	p := c.alive[agent]
	if p == nil {
		return nil
	}
	p.wait = false
	return p
}

func (c *crowd) begin(b *beginning) {
	n := len(b.joiners)
	switch {
	case c.ended:
		c.t.Fatal("a round begins after the end")
	case c.round >= 0 && !c.verdict:
		c.t.Fatal("a round begins while another one runs")
	case b.number != c.round+1:
		c.t.Fatalf("round %d follows %d", b.number, c.round)
	case n < c.r.min || n > c.r.max || n%c.r.unit != 0:
		c.t.Fatalf("%d nodes, want %d to %d by %d", n, c.r.min, c.r.max, c.r.unit)
	case c.r.fixed && n != c.r.max:
		c.t.Fatalf("%d nodes, want %d", n, c.r.max)
	}
	for _, p := range c.alive {
		if p.in && !p.wait {
			c.t.Fatalf("round %d begins without %s, which has not come back yet", b.number, p.rec.Agent)
		}
	}
	seen := map[string]bool{}
	for rank, s := range b.joiners {
		if seen[s.rec.Agent] {
			c.t.Fatalf("%s has two ranks", s.rec.Agent)
		}
		seen[s.rec.Agent] = true
		if s.rec.Round == c.round && c.round >= 0 && s.rec.Rank < n && s.rec.Rank != rank {
			c.t.Fatalf("%s had rank %d and has %d of %d", s.rec.Agent, s.rec.Rank, rank, n)
		}
		if c.r.fixed && s.rec.NodeRank != rank {
			c.t.Fatalf("%s has rank %d, and must have %d", s.rec.Agent, rank, s.rec.NodeRank)
		}
	}
	for _, p := range c.alive {
		p.in = false
	}
	c.round, c.verdict = b.number, false
	for rank, s := range b.joiners {
		if p := c.answered(s.ticket); p != nil {
			p.in = true
			p.rec.Round, p.rec.Rank, p.rec.Size, p.rec.Restarts, p.rec.Replacements = b.number, rank, n, c.r.restarts, c.r.replacements
		}
	}
}

func (c *crowd) end(v rendezvous.Verdict) {
	c.verdict = true
	c.ended = v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail
	c.r.end(v)
}

// inOrder keeps survivors' ranks.
func inOrder(places []Placement) []int {
	order := make([]int, len(places))
	for r := range order {
		order[r] = -1
	}
	var rest []int
	for i, p := range places {
		if p.Survivor && p.Rank < len(order) {
			order[p.Rank] = i
		} else {
			rest = append(rest, i)
		}
	}
	for r := range order {
		if order[r] < 0 {
			order[r], rest = rest[0], rest[1:]
		}
	}
	return order
}

// TestRosterInvariants lets agents come, go, die, fail and wait in any order: ranks are dense and unique, survivors
// keep them, a round has at most max nodes and its members agree, rounds only grow, one runs at a time, every ticket
// has one answer, and no round begins before all living members of the last one have come back.
func TestRosterInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := rules{
			min: rapid.IntRange(1, 4).Draw(t, "min"), spares: rapid.IntRange(0, 2).Draw(t, "spares"),
			unit:     rapid.IntRange(1, 2).Draw(t, "unit"),
			lastCall: 3 * time.Second, patience: 5 * time.Second, replaceLimit: -1, backoffLimit: -1,
			quorum: rapid.Bool().Draw(t, "quorum"), fence: time.Second, fenced: 2 * time.Second, order: inOrder,
		}
		rules.max = rules.min + rapid.IntRange(0, 3).Draw(t, "more")
		if rapid.IntRange(0, 3).Draw(t, "fixed") == 0 {
			rules.fixed, rules.min, rules.spares, rules.unit = true, rules.max, 0, 1
		}
		c := &crowd{t: t, r: newRoster(rules), open: map[int64]string{}, alive: map[string]*person{}, round: -1}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"spawn", "spawn", "back", "back", "back", "die", "leave", "fail", "time", "time"}).Draw(t,
				"step") {
			case "spawn":
				if len(c.alive) < 9 {
					c.spawn()
				}
			case "back":
				if p := c.some(func(p *person) bool { return p.in && !p.wait && c.verdict }); p != nil {
					c.join(p)
				}
			case "die", "leave":
				if p := c.some(func(*person) bool { return true }); p != nil {
					for ticket, agent := range c.open {
						if agent == p.rec.Agent {
							delete(c.open, ticket)
						}
					}
					delete(c.alive, p.rec.Agent)
					c.r.lost(c.now, p.rec.Agent, rapid.SampledFrom([]goes{goesSilent, goesLeft, goesDeaf, goesGarbled}).Draw(t, "how"))
				}
			case "fail":
				if c.round >= 0 && !c.verdict && !c.ended {
					kind := rapid.SampledFrom([]rendezvous.VerdictKind{
						rendezvous.Restart, rendezvous.Restart, rendezvous.Reassemble,
						rendezvous.Fail,
					}).Draw(t, "kind")
					c.end(rendezvous.Verdict{Kind: kind, Restarts: c.r.restarts + 1})
				}
			case "time":
				c.now += time.Duration(rapid.IntRange(0, 8000).Draw(t, "ms")) * time.Millisecond
			}
			c.settle()
		}
		c.settle() // a verdict that was just proposed is taken in at once
		if c.r.phase == phaseOver && len(c.open) > 0 {
			t.Fatalf("the job is over, and tickets %v wait", c.open)
		}
		// However it stands: when enough nodes come back and time passes, a round begins, or the job is over.
		if c.r.phase == phaseOver || c.r.fixed {
			return
		}
		if c.round >= 0 && !c.verdict {
			c.end(rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: c.r.restarts + 1})
		}
		for len(c.alive) < c.r.max+c.r.spares {
			c.spawn()
		}
		before := c.round
		for _, p := range c.alive {
			if p.in && !p.wait {
				c.join(p)
			}
		}
		for range 4 {
			c.settle()
			c.now += 10 * time.Second
		}
		possible := c.r.target(len(c.alive)) > 0
		if c.r.phase != phaseOver && possible && c.round == before {
			t.Fatalf("%d nodes wait, and no round begins: %+v", len(c.r.waiting), c.r.waitlist(0))
		}
	})
}

// TestAwaits is what a meeting waits for that seems to have nodes enough.
func TestAwaits(t *testing.T) {
	join := func(r *roster, nodeRanks ...int) {
		for i, rank := range nodeRanks {
			r.join(0, int64(i+1), joinRecord{Agent: string(rune('a' + i)), Workers: 1, NodeRank: rank, Round: -1})
		}
	}
	for name, c := range map[string]struct {
		rules rules
		join  []int
		begun bool
		want  string
	}{
		"too few": {rules{min: 2, max: 4, unit: 1, lastCall: time.Second}, []int{-1}, false, ""},
		"last call": {
			rules{min: 2, max: 4, unit: 1, lastCall: time.Second},
			[]int{-1, -1},
			false,
			"the last call for others runs",
		},
		"no multiple":    {rules{min: 2, max: 4, unit: 2, lastCall: time.Second}, []int{-1}, false, "a multiple of 2"},
		"one rank twice": {rules{min: 3, max: 3, unit: 1, fixed: true}, []int{0, 0, 2}, false, "nobody has node rank 1"},
		"a node that was lost": {
			rules{min: 1, max: 4, unit: 1, lastCall: time.Second},
			[]int{-1, -1},
			true,
			"no worker of the last round can be left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoster(c.rules)
			join(r, c.join...)
			if c.begun {
				r.notBefore = time.Minute
			}
			if got := r.awaits(0); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestPredecessorReturns: the coordinator before is taken for lost until it comes back, and only then is it no loss.
func TestPredecessorReturns(t *testing.T) {
	for name, back := range map[string]bool{"it comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			r := newRoster(reviewRules(1, 2))
			i := &handover{
				round: 0, size: 2,
				members: map[string]member{"a": {rank: 0, name: "a", gone: true, uncounted: true}, "b": {rank: 1, name: "b"}},
			}
			i.into(r)
			want := 1
			r.join(0, 1, joinRecord{Agent: "b", Workers: 1, NodeRank: -1, Round: 0, Rank: 1, Size: 2})
			if back {
				r.join(0, 2, joinRecord{Agent: "a", Workers: 1, NodeRank: -1, Round: 0, Rank: 0, Size: 2})
				want = 0
			}
			r.settle(time.Minute)
			if r.phase != phaseRun || r.replacements != want {
				t.Errorf("phase %v, %d nodes lost, want %d", r.phase, r.replacements, want)
			}
		})
	}
}

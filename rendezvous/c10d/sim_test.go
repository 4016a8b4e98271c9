package c10d_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// fleet is a world with up to eight nodes, to which things happen at random: those of agents of ours, some of which
// have several, and of upstream, where there is a Python to ask.
type fleet struct {
	*world
	r        *rand.Rand
	settings c10d.Settings
	agents   []*agent
	upstream *upstream // nil where all agents are ours
	nobody   string    // the last state by which nobody waits, as upstream says
	made     int
	// groups says whether an agent of ours may have several nodes.
	groups bool
	log    []string
}

func newFleet(t testing.TB, seed uint64, u *upstream, groups bool) *fleet {
	r := rand.New(rand.NewPCG(seed, 0))
	minNodes := 1 + r.IntN(4)
	s := c10d.DefaultSettings(minNodes, minNodes+r.IntN(4))
	s.LastCall = time.Duration(1+r.IntN(30)) * time.Second
	f := &fleet{world: newWorld(t, s.MaxNodes), r: r, settings: s, upstream: u, groups: groups}
	f.latency = func() time.Duration {
		if r.IntN(50) == 0 {
			return time.Duration(r.Int64N(int64(2 * time.Second)))
		}
		return time.Duration(r.Int64N(int64(50 * time.Millisecond)))
	}
	f.tell = func(a *agent, m move) {
		if m.joined {
			_, isOurs := a.brain.(*ours)
			f.checkRound(a, nodesOf(a), isOurs)
		}
		if m.action != "sync" && m.action != "keep alive" {
			f.log = append(f.log, fmt.Sprintf("%7.2f %s %s %s", f.now.Seconds(), a.name, m.action, m.reason))
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, %+v, state %s", seed, s, show(f.decode(f.text), someTime))
			for _, line := range f.log[max(0, len(f.log)-120):] {
				t.Log(line)
			}
		}
	})
	return f
}

func (f *fleet) live() []*agent {
	var live []*agent
	for _, a := range f.agents {
		if !a.dead && a.done == "" {
			live = append(live, a)
		}
	}
	return live
}

func nodesOf(a *agent) []c10d.Node {
	if b, ok := a.brain.(*ours); ok {
		return b.nodes
	}
	return []c10d.Node{a.brain.(*theirs).node}
}

// size is how many nodes live.
func (f *fleet) size() int {
	n := 0
	for _, a := range f.live() {
		n += len(nodesOf(a))
	}
	return n
}

func (f *fleet) newNode() c10d.Node {
	f.made++
	return c10d.Node{Addr: fmt.Sprintf("node%d", f.r.IntN(8)), PID: int64(1000 + f.made)}
}

// join starts one more agent: of upstream in every other place where there is one to ask. One in three of ours has
// several nodes, if there may be any.
func (f *fleet) join() {
	node := f.newNode()
	var a *agent
	if f.upstream != nil && f.made%2 == 0 {
		a = &agent{brain: &theirs{f: f, node: node}}
	} else {
		nodes := []c10d.Node{node}
		if f.groups && f.r.IntN(3) == 0 {
			for range 1 + f.r.IntN(3) {
				nodes = append(nodes, f.newNode())
			}
		}
		var b *ours
		a, b = f.newOurs(f.settings, time.Duration(f.r.Int64N(int64(2*time.Minute)))-time.Minute, nodes...)
		b.stopping = time.Duration(f.r.Int64N(int64(4 * time.Second)))
	}
	a.name = node.String()
	f.agents = append(f.agents, a)
	f.push(a, time.Duration(f.r.Int64N(int64(3*time.Second))), false, func() { f.read(a) })
}

// happen does something to somebody.
func (f *fleet) happen() {
	live := f.live()
	if len(live) == 0 {
		f.join()
		return
	}
	a := live[f.r.IntN(len(live))]
	if b, ok := a.brain.(*ours); ok && f.groups && f.r.IntN(3) == 0 {
		f.change(a, b)
		return
	}
	switch f.r.IntN(6) {
	case 0, 1:
		if f.size() < 8 {
			f.join()
		}
	case 2:
		a.dead = true
		f.log = append(f.log, fmt.Sprintf("%7.2f %s is killed", f.now.Seconds(), a.name))
	case 3:
		d := time.Duration(f.r.Int64N(int64(40 * time.Second)))
		a.paused = f.now + d
		f.log = append(f.log, fmt.Sprintf("%7.2f %s is stopped for %v", f.now.Seconds(), a.name, d))
	case 4, 5:
		f.log = append(f.log, fmt.Sprintf("%7.2f %s has a worker that fails", f.now.Seconds(), a.name))
		a.brain.fail(f.now)
	}
}

// change lets a node come into a group or leave it.
func (f *fleet) change(a *agent, b *ours) {
	if f.size() < 8 && f.r.IntN(2) == 0 {
		n := f.newNode()
		f.log = append(f.log, fmt.Sprintf("%7.2f %s has %s too", f.now.Seconds(), a.name, n))
		b.nodes = slices.Insert(slices.Clone(b.nodes), f.r.IntN(len(b.nodes)+1), n)
	} else if i := f.r.IntN(len(b.nodes)); len(b.nodes) > 1 {
		f.log = append(f.log, fmt.Sprintf("%7.2f %s has %s no more", f.now.Seconds(), a.name, b.nodes[i]))
		b.gone = append(b.gone, b.nodes[i])
		b.nodes = slices.Delete(slices.Clone(b.nodes), i, i+1)
	}
}

// settled checks where everybody is when nothing has happened for long enough: as many as can take part in one complete
// round that all of them know, the others are spare; or all of them wait, where they are too few.
func (f *fleet) settled() {
	f.t.Helper()
	s, live := f.decode(f.text), f.live()
	if s == nil {
		f.t.Fatal("nobody wrote a state")
	}
	for _, n := range s.Nodes() {
		found := false
		for _, a := range live {
			found = found || slices.Contains(nodesOf(a), n)
		}
		if !found {
			f.t.Fatalf("%s is dead or gone, and still in the state", n)
		}
	}
	size := f.size()
	if size < f.settings.MinNodes {
		if s.Complete {
			f.t.Fatalf("%d live nodes are in a complete round, at least %d must be", size, f.settings.MinNodes)
		}
		for _, a := range live {
			for _, n := range nodesOf(a) {
				if _, in := s.Participants[n]; !in {
					f.t.Fatalf("%s does not wait for others", n)
				}
			}
		}
		return
	}
	if !s.Complete {
		f.t.Fatalf("%d live nodes have no round", size)
	}
	if want := min(size, f.settings.MaxNodes); len(s.Participants) != want {
		f.t.Fatalf("%d of %d live nodes take part, want %d", len(s.Participants), size, want)
	}
	for _, a := range live {
		r, ok := a.brain.held()
		for _, n := range nodesOf(a) {
			rank, in := s.Participants[n]
			was, member := r.Ranks[n]
			switch {
			case in && (!ok || r.Number != s.Round || !member || was != rank):
				f.t.Fatalf("%s has rank %d in the state's round %d, and works as %d in round %d (%v)", n, rank, s.Round, was, r.Number, ok)
			case !in && !s.RedundancyList.Has(n):
				f.t.Fatalf("%s is neither in the round nor spare", n)
			}
		}
	}
}

// simulate runs one fleet: a start, a while in which things happen, and long enough without any.
func simulate(t testing.TB, seed uint64, u *upstream, groups bool) *fleet {
	f := newFleet(t, seed, u, groups)
	for range 1 + f.r.IntN(6) {
		f.join()
	}
	for range f.r.IntN(30) {
		f.run(time.Duration(f.r.Int64N(int64(15 * time.Second))))
		f.happen()
	}
	if len(f.live()) == 0 {
		f.join()
	}
	return f
}

// quiet is enough for a pause to end (40 s), a death to be noticed (15 s and polls), the workers to stop (4 s), and the
// last call (30 s); then once more, because what happens last may undo a round that was gathering.
const quiet = 4 * time.Minute

// TestSimulation lets fleets of our agents live through crashes, pauses, failing workers, newcomers, slow links, and
// clocks up to two minutes apart. Every write is checked (written), every join (checkRound), and where all end
// (settled).
func TestSimulation(t *testing.T) {
	for seed := range uint64(testutil.Count(40, 20000)) {
		f := simulate(t, seed, nil, false)
		f.run(quiet)
		f.settled()
	}
}

// TestPeersSimulation is TestSimulation with agents that have several nodes, which come and go.
func TestPeersSimulation(t *testing.T) {
	for seed := range uint64(testutil.Count(40, 20000)) {
		f := simulate(t, seed, nil, true)
		f.run(quiet)
		f.settled()
	}
}

// TestRankProperties checks what is promised of ranks, for any participants and any memory of the round before.
func TestRankProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.Custom(func(t *rapid.T) c10d.Node {
			return c10d.Node{
				Addr: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "addr"),
				PID:  rapid.Int64Range(1, 3).Draw(t, "pid"),
			}
		})
		participants := rapid.MapOfN(node, rapid.Just(0), 1, 10).Draw(t, "participants")
		before := rapid.MapOfN(node, rapid.IntRange(-1, 12), 0, 10).Draw(t, "before")
		ranks := c10d.AssignRanks(participants, before, nil)
		taken, holders := make([]bool, len(participants)), map[int]int{}
		for _, rank := range before {
			holders[rank]++
		}
		for n := range participants {
			rank, ok := ranks[n]
			if !ok || rank < 0 || rank >= len(taken) || taken[rank] {
				t.Fatalf("%s has rank %d (%v) among %v", n, rank, ok, ranks)
			}
			taken[rank] = true
			if was, ok := before[n]; ok && was >= 0 && was < len(taken) && holders[was] == 1 && rank != was {
				t.Fatalf("%s had rank %d, has %d now among %d", n, was, rank, len(taken))
			}
		}
		if len(ranks) != len(participants) {
			t.Fatalf("%d participants have %d ranks", len(participants), len(ranks))
		}
	})
}

// TestRanks shows the rules of ranks one by one.
func TestRanks(t *testing.T) {
	node := func(name string) c10d.Node { return c10d.Node{Addr: name[:1], PID: int64(len(name))} } // "a" and "aa" share an address
	for _, c := range []struct {
		name                string
		before, now, ranked []string // by rank
	}{
		{"first round: upstream's order", nil, []string{"c", "a", "b"}, []string{"a", "b", "c"}},
		{"a newcomer comes last, whatever its name", []string{"b", "c"}, []string{"a", "b", "c"}, []string{"b", "c", "a"}},
		{"a newcomer fills the gap", []string{"a", "b", "c"}, []string{"a", "c", "z"}, []string{"a", "z", "c"}},
		{"a smaller world", []string{"a", "b", "c"}, []string{"b", "c"}, []string{"c", "b"}},
		{"a restarted agent takes its address's rank", []string{"c", "b", "a"}, []string{"a", "b", "cc"}, []string{"cc", "b", "a"}},
		{"not from one that lives", []string{"c", "b"}, []string{"a", "c", "cc", "b"}, []string{"c", "b", "a", "cc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, now := map[c10d.Node]int{}, map[c10d.Node]int{}
			for rank, name := range c.before {
				before[node(name)] = rank
			}
			for _, name := range c.now {
				now[node(name)] = 0
			}
			ranks := c10d.AssignRanks(now, before, nil)
			for rank, name := range c.ranked {
				if ranks[node(name)] != rank {
					t.Errorf("%s has rank %d, want %d", name, ranks[node(name)], rank)
				}
			}
		})
	}
}

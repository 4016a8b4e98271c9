package c10d_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// actor decides for some nodes.
type actor struct {
	nodes []c10d.Node
	want  c10d.Want
	round c10d.Round
	last  c10d.Decision
}

// rest lets the actors decide in turn, at one moment, until none of them has anything to write; it returns what stands
// in the store then.
func (sc scene) rest(t *testing.T, actors ...*actor) *c10d.State {
	t.Helper()
	state := sc.state
	for range 100 {
		still := true
		for _, a := range actors {
			sc.seen.Observe(state, sc.now)
			a.last = c10d.Step(c10d.Input{
				State: state, Members: a.nodes, Settings: sc.settings, Now: sc.now, Want: a.want, Deadline: sc.deadline, Round: a.round,
				Seen: sc.seen,
			})
			if a.last.State != nil {
				state, still = a.last.State, false
			} else if a.last.Action == c10d.ActionFinish && a.want == c10d.WantJoin {
				a.want, a.round, still = c10d.WantStay, a.last.Round, false
			}
		}
		if still {
			return state
		}
	}
	t.Fatalf("no rest in %s", show(state, someTime))
	return nil
}

// TestPeersIsEachInTurn compares a group with agents of one node each that take the same steps with nobody in
// between: the state that they leave behind must be the same, and the rounds that they join.
func TestPeersIsEachInTurn(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	ends := map[string]int{}
	for i := range testutil.Count(3000, 100000) {
		seed := r.Uint64()
		// Two scenes that are the same, because an observer remembers.
		make2 := func() (scene, []c10d.Node) {
			r := rand.New(rand.NewPCG(seed, 0))
			sc := randomScene(r)
			if sc.want == c10d.WantStay {
				sc.want = c10d.WantJoin
			}
			sc.deadline = sc.now.Mono + time.Minute
			group := []c10d.Node{sc.self}
			for _, n := range sc.state.Nodes() {
				if n != sc.self && r.IntN(2) == 0 {
					group = append(group, n)
				}
			}
			for j := range r.IntN(4) {
				group = append(group, c10d.Node{Addr: string(rune('a' + r.IntN(5))), PID: int64(100 + j)})
			}
			r.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
			set := c10d.Nodes{}
			for _, n := range group {
				set[n] = struct{}{}
			}
			sc.seen.SetOurs(set)
			return sc, group
		}
		one, group := make2()
		spares := 0
		for _, n := range group {
			if one.state.RedundancyList.Has(n) {
				spares++
			}
		}
		if one.state.Complete && len(one.living.Participants) < len(one.state.Participants) {
			continue // nor have those a place yet who look before the members of a round that cannot begin have left it
		}
		if !one.state.Deadline.IsZero() && one.state.Deadline.Before(one.now.Wall) {
			continue // a group goes in as a whole before it completes a round whose last call is over
		}
		if spares > 0 && len(one.living.Participants)+len(one.living.WaitList) < one.settings.MaxNodes {
			continue // who of several takes a place that is free depends on when each looks: see TestPeersSpares
		}
		all := &actor{nodes: group, want: one.want}
		want := one.rest(t, all)
		several, _ := make2()
		var each []*actor
		for _, n := range group {
			each = append(each, &actor{nodes: []c10d.Node{n}, want: several.want})
		}
		got := several.rest(t, each...)
		if diff := cmp.Diff(want, got, equalStates,
			cmpopts.IgnoreFields(c10d.State{}, "Ranks", "RanksRound", "LastHeartbeats")); diff != "" {
			t.Fatalf("scene %d: group %v in %s (-together +each):\n%s", i, group, show(one.state, someTime), diff)
		}
		if diff := cmp.Diff(want.Nodes(), got.Nodes()); diff != "" { // each writes a heartbeat when its own is due, a group when one is
			t.Fatalf("scene %d: heartbeats (-together +each):\n%s", i, diff)
		}
		for _, a := range each {
			_, in := all.round.Ranks[a.nodes[0]]
			if in != (a.want == c10d.WantStay && a.round.Ranks != nil) {
				t.Fatalf("scene %d: %s is in round %v alone, in %v together", i, a.nodes[0], a.round, all.round)
			}
			if in {
				ends["in a round"]++
				a.round.Rank, all.round.Rank = 0, 0
				if diff := cmp.Diff(all.round, a.round); diff != "" {
					t.Fatalf("scene %d: %s (-together +alone):\n%s", i, a.nodes[0], diff)
				}
			}
		}
		ends[fmt.Sprint(one.want, " ", all.last.Action)]++
	}
	for _, w := range []string{"0 sync", "0 new round", "0 error closed", "2 finish", "3 finish", "in a round"} {
		if ends[w] < 10 {
			t.Errorf("%q came up %d times, want at least 10", w, ends[w])
		}
	}
	t.Log(ends)
}

// TestPeersPlaces shows who of a group gets a place: those in front, whatever their names; and that those who leave
// it are out with the next write.
func TestPeersPlaces(t *testing.T) {
	set := c10d.DefaultSettings(2, 3)
	seen := c10d.NewObserver(set)
	now := c10d.Instant{Mono: time.Hour, Wall: someTime}
	var state *c10d.State
	step := func(want c10d.Want, round c10d.Round, members, leaving []string) c10d.Decision {
		t.Helper()
		in := c10d.Input{Settings: set, Now: now, Want: want, Deadline: now.Mono + time.Minute, Round: round, Seen: seen, State: state}
		all := c10d.Nodes{}
		for _, m := range members {
			in.Members = append(in.Members, named(m))
			all[named(m)] = struct{}{}
		}
		for _, m := range leaving {
			in.Leaving = append(in.Leaving, named(m))
			all[named(m)] = struct{}{}
		}
		seen.SetOurs(all)
		seen.Observe(state, now)
		d := c10d.Step(in)
		if d.State != nil {
			state = d.State
			seen.Observe(state, now)
		}
		return d
	}
	five := []string{"e", "b", "d", "a", "c"}
	if d := step(c10d.WantJoin, c10d.Round{}, five, nil); d.Action != c10d.ActionAddToParticipants || !state.Complete {
		t.Fatalf("decides %q: %s", d.Action, show(state, someTime))
	}
	if got := state.RedundancyList.Sorted(); !slices.Equal(got, []c10d.Node{named("a"), named("c")}) {
		t.Errorf("spares are %v, want a and c", got)
	}
	d := step(c10d.WantJoin, c10d.Round{}, five, nil)
	if d.Action != c10d.ActionFinish || d.Round.Rank != 2 || len(d.Round.Ranks) != 3 {
		t.Fatalf("decides %q, %+v", d.Action, d.Round)
	}
	round := d.Round
	if d = step(c10d.WantStay, round, []string{"e", "b", "a", "c"}, []string{"d"}); d.Action != c10d.ActionRemoveFromParticipants {
		t.Errorf("decides %q, want that d leaves", d.Action)
	}
	if d = step(c10d.WantStay, round, []string{"e", "b", "a", "c"}, []string{"d"}); d.Action != c10d.ActionNewRound ||
		d.Reason != "node d_1_0 (group rank 1) has left" {
		t.Errorf("decides %q because %q", d.Action, d.Reason)
	}
	if d = step(c10d.WantExit, round, []string{"e", "b", "a", "c"}, []string{"d"}); d.State == nil || len(d.State.Nodes()) != 0 ||
		d.State.Round != 1 {
		t.Errorf("all leave: %q, %s", d.Action, show(state, someTime))
	}
	if d = step(c10d.WantJoin, round, []string{"e", "b", "a", "c"}, nil); !state.Complete || !state.RedundancyList.Has(named("c")) {
		t.Errorf("join again: %q, %s", d.Action, show(state, someTime))
	}
	for n, rank := range map[string]int{"e": 2, "b": 0, "a": 1} {
		if state.Participants[named(n)] != rank {
			t.Errorf("%s has rank %d, want %d: e and b have kept theirs", n, state.Participants[named(n)], rank)
		}
	}
}

// TestPeersSpares shows that as many spares come as there are free places, the first ones, and no sooner than the
// node that has left its place may be back.
func TestPeersSpares(t *testing.T) {
	set := c10d.DefaultSettings(1, 3)
	seen := c10d.NewObserver(set)
	s := completeState(map[string]int{"a": 0, "b": 1, "x": 2})
	s.RedundancyList = c10d.Nodes{named("c"): {}, named("d"): {}, named("e"): {}}
	group := []c10d.Node{named("a"), named("e"), named("c"), named("d")}
	all := c10d.Nodes{}
	for _, n := range group {
		all[n] = struct{}{}
		s.LastHeartbeats[n] = someTime
	}
	seen.SetOurs(all)
	round := c10d.Round{Number: 3, Ranks: map[c10d.Node]int{named("a"): 0, named("x"): 2}}
	decide := func(at time.Duration) c10d.Decision {
		t.Helper()
		now := c10d.Instant{Mono: time.Hour + at, Wall: someTime.Add(at)}
		seen.Observe(s, now)
		d := c10d.Step(c10d.Input{State: s, Members: group, Settings: set, Now: now, Want: c10d.WantStay, Round: round, Seen: seen})
		if d.State != nil {
			s = d.State
		}
		return d
	}
	if d := decide(0); d.Action != c10d.ActionSync {
		t.Errorf("full: decides %q", d.Action)
	}
	delete(s.Participants, named("b"))
	if d := decide(time.Second); d.Action != c10d.ActionSync {
		t.Errorf("b has just left: decides %q", d.Action)
	}
	if d := decide(2 * time.Second); d.Action != c10d.ActionRemoveFromRedundancyList || s.RedundancyList.Has(named("e")) ||
		len(s.RedundancyList) != 2 {
		t.Errorf("b is not back: decides %q: %s", d.Action, show(s, someTime))
	}
	if d := decide(2 * time.Second); d.Action != c10d.ActionAddToWaitList || !s.WaitList.Has(named("e")) || len(s.WaitList) != 1 ||
		len(s.RedundancyList) != 2 {
		t.Errorf("e comes: decides %q: %s", d.Action, show(s, someTime))
	}
	if d := decide(2 * time.Second); d.Action != c10d.ActionNewRound {
		t.Errorf("e waits: decides %q", d.Action)
	}
}

// TestHeir shows who becomes rank 0 after the one that served the workers' store.
func TestHeir(t *testing.T) {
	ranks := func(names ...string) map[c10d.Node]int {
		m := map[c10d.Node]int{}
		for rank, name := range names {
			m[c10d.Node{Addr: name[:1], PID: int64(len(name))}] = rank
		}
		return m
	}
	ours := c10d.Nodes{}
	for n := range ranks("x", "y", "z") {
		ours[n] = struct{}{}
	}
	for _, c := range []struct {
		name        string
		before, now []string
		first       string
	}{
		{"it goes on", []string{"a", "x", "b"}, []string{"a", "x"}, "a"},
		{"another of theirs inherits", []string{"a", "x", "b"}, []string{"b", "x"}, "b"},
		{"the one with the lower rank", []string{"a", "x", "c", "b"}, []string{"b", "x", "c"}, "c"},
		{"not one that is new", []string{"a", "x", "b"}, []string{"aa", "x", "b"}, "b"},
		{"nobody of theirs was there", []string{"a", "x", "y"}, []string{"x", "y", "c"}, "c"}, // fills the gap, as any newcomer
		{"ours was rank 0", []string{"x", "b", "a"}, []string{"y", "a", "b"}, "b"},
		{"ours is rank 0", []string{"x", "a", "b"}, []string{"x", "b"}, "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c10d.AssignRanks(ranks(c.now...), ranks(c.before...), ours)
			for n, rank := range got {
				if rank == 0 && n.Addr != c.first {
					t.Errorf("rank 0 is %s, want %s", n, c.first)
				}
			}
		})
	}
}

// BenchmarkPeers4000 is what a group of 4,000 nodes spends to join, complete and leave a round, the pickle
// included.
func BenchmarkPeers4000(b *testing.B) {
	for _, size := range []int{1000, 4000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			set := c10d.DefaultSettings(size, size)
			group, all := make([]c10d.Node, size), c10d.Nodes{}
			for i := range group {
				group[i] = c10d.Node{Addr: fmt.Sprintf("node%04d.cluster.example.com", i), PID: int64(10000 + i)}
				all[group[i]] = struct{}{}
			}
			b.ReportAllocs()
			decisions := 0
			for b.Loop() {
				seen := c10d.NewObserver(set)
				seen.SetOurs(all)
				var state *c10d.State
				now := c10d.Instant{Wall: someTime}
				for _, want := range []c10d.Want{c10d.WantExit, c10d.WantJoin, c10d.WantExit} {
					for {
						decisions++
						now.Mono += time.Millisecond
						seen.Observe(state, now)
						d := c10d.Step(c10d.Input{
							State: state, Members: group, Settings: set, Now: now, Want: want, Deadline: time.Hour, Seen: seen,
						})
						if d.Action == c10d.ActionFinish {
							break
						}
						text, err := c10d.Encode(d.State)
						if err != nil {
							b.Fatal(err)
						}
						if state, err = c10d.Decode(text); err != nil {
							b.Fatal(err)
						}
					}
				}
			}
			b.ReportMetric(float64(decisions)/float64(b.N), "decisions/op")
		})
	}
}

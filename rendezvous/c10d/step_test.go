package c10d_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/rendezvous/c10d"
)

// named returns the node that tests call name.
func named(name string) c10d.Node { return c10d.Node{Addr: name, PID: 1} }

// completeState returns a complete round 3 of nodes with these ranks, whose heartbeats are fresh.
func completeState(ranks map[string]int) *c10d.State {
	s := c10d.NewState()
	s.Round, s.Complete = 3, true
	for name, rank := range ranks {
		s.Participants[named(name)] = rank
		s.LastHeartbeats[named(name)] = someTime
	}
	return s
}

// decide asks what b does about s, which it sees for the first time.
func decide(s *c10d.State, want c10d.Want, round c10d.Round) c10d.Decision {
	set, now := c10d.DefaultSettings(1, 3), c10d.Instant{Mono: time.Hour, Wall: someTime}
	seen := c10d.NewObserver(set, named("b"))
	seen.Observe(s, now)
	return c10d.Step(c10d.Input{
		State: s, Members: []c10d.Node{named("b")}, Settings: set, Now: now, Want: want, Deadline: set.Deadline(want, now.Mono),
		Round: round, Seen: seen,
	})
}

// TestFinish joins a round that somebody else has completed, and that members may have left since.
func TestFinish(t *testing.T) {
	three := map[c10d.Node]int{named("a"): 0, named("b"): 1, named("c"): 2}
	for _, c := range []struct {
		name   string
		ranks  map[string]int
		noted  map[c10d.Node]int // what the state says of the round as it was completed
		round  int               // of which round it says that
		action c10d.Action
		reason string
		joined map[c10d.Node]int
	}{
		{"all are there", map[string]int{"a": 0, "b": 1, "c": 2}, nil, -1, c10d.ActionFinish, "", three},
		{"all are there, and noted", map[string]int{"a": 0, "b": 1, "c": 2}, three, 3, c10d.ActionFinish, "", three},
		{
			"the notes are of another round",
			map[string]int{"a": 0, "b": 1},
			three, 2, c10d.ActionFinish, "",
			map[c10d.Node]int{named("a"): 0, named("b"): 1},
		},
		{
			"a gap among the ranks",
			map[string]int{"b": 1, "c": 2},
			nil, -1, c10d.ActionRemoveFromParticipants,
			"a member has left the round before it began", nil,
		},
		{
			"the last rank has left, noted",
			map[string]int{"a": 0, "b": 1},
			three, 3, c10d.ActionRemoveFromParticipants,
			"node c_1_0 (group rank 2)", nil,
		},
		{
			"notes that are not of us",
			map[string]int{"a": 0, "b": 1},
			map[c10d.Node]int{named("a"): 0, named("c"): 1},
			3, c10d.ActionFinish,
			"",
			map[c10d.Node]int{named("a"): 0, named("b"): 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := completeState(c.ranks)
			s.Ranks, s.RanksRound = c.noted, c.round
			d := decide(s, c10d.WantJoin, c10d.Round{})
			if d.Action != c.action || !strings.Contains(d.Reason, c.reason) {
				t.Fatalf("decides %q (%s), want %q (%s)", d.Action, d.Reason, c.action, c.reason)
			}
			if diff := cmp.Diff(c.joined, d.Round.Ranks); diff != "" {
				t.Errorf("joined (-want +got):\n%s", diff)
			}
			if c.joined != nil && (d.Round.Number != 3 || d.Round.Rank != 1) {
				t.Errorf("joined round %d with rank %d, want round 3 with rank 1", d.Round.Number, d.Round.Rank)
			}
		})
	}
}

// TestRanksOfJoinedRound: what is noted of a round that an agent of upstream has completed are the ranks with which it was
// joined, also where members have left, or all have, before we write for the first time.
func TestRanksOfJoinedRound(t *testing.T) {
	three := map[c10d.Node]int{named("a"): 0, named("b"): 1, named("c"): 2}
	two := map[c10d.Node]int{named("b"): 1, named("c"): 2}
	joined := c10d.Round{Number: 3, Rank: 1, Ranks: three}
	for name, c := range map[string]struct {
		joined c10d.Round
		change func(*c10d.State)
		want   map[c10d.Node]int
		of     int
	}{
		"a member has left":          {joined, func(*c10d.State) {}, three, 3},
		"the round is over":          {joined, func(s *c10d.State) { s.Complete, s.Round = false, 4 }, three, 3},
		"the next one is complete":   {joined, func(s *c10d.State) { s.Round = 4 }, two, 4},
		"none was joined":            {c10d.Round{}, func(*c10d.State) {}, two, 3},
		"another one was joined":     {c10d.Round{Number: 2, Ranks: three}, func(*c10d.State) {}, two, 3},
		"the ranks are not those":    {joined, func(s *c10d.State) { s.Participants[named("c")] = 0 }, nil, 3},
		"somebody has noted already": {joined, func(s *c10d.State) { s.Ranks, s.RanksRound = two, 3 }, two, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := completeState(map[string]int{"b": 1, "c": 2})
			c.change(s)
			if c.want == nil {
				c.want = maps.Clone(s.Participants)
			}
			d := decide(s, c10d.WantExit, c.joined)
			if d.State == nil {
				t.Fatalf("decides %q, and writes nothing", d.Action)
			}
			if diff := cmp.Diff(c.want, d.State.Ranks); diff != "" || d.State.RanksRound != c.of {
				t.Errorf("notes of round %d, want %d (-want +got):\n%s", d.State.RanksRound, c.of, diff)
			}
		})
	}
}

// TestRestore lets b find itself dropped from the round in which its workers run.
func TestRestore(t *testing.T) {
	round := c10d.Round{Number: 3, Rank: 1, Ranks: map[c10d.Node]int{named("a"): 0, named("b"): 1}}
	for _, c := range []struct {
		name   string
		ranks  map[string]int
		change func(*c10d.State)
		action c10d.Action
	}{
		{"the round goes on", map[string]int{"a": 0}, func(*c10d.State) {}, c10d.ActionRestore},
		{"from the spares", map[string]int{"a": 0}, func(s *c10d.State) { s.RedundancyList[named("b")] = struct{}{} }, c10d.ActionRestore},
		{"somebody has our rank", map[string]int{"a": 0, "c": 1}, func(*c10d.State) {}, c10d.ActionNewRound},
		{"there is no place", map[string]int{"a": 0, "c": 2, "d": 3}, func(*c10d.State) {}, c10d.ActionNewRound},
		{"the others restart", map[string]int{"a": 0}, func(s *c10d.State) { s.WaitList[named("c")] = struct{}{} }, c10d.ActionNewRound},
		{"another round", map[string]int{"a": 0}, func(s *c10d.State) { s.Round = 4 }, c10d.ActionNewRound},
		{"the round is over", map[string]int{"a": 0}, func(s *c10d.State) { s.Complete = false }, c10d.ActionNewRound},
		{"closed", map[string]int{"a": 0}, func(s *c10d.State) { s.Closed = true }, c10d.ActionSync},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := completeState(c.ranks)
			c.change(s)
			d := decide(s, c10d.WantStay, round)
			if d.Action != c.action {
				t.Fatalf("decides %q (%s), want %q", d.Action, d.Reason, c.action)
			}
			if c.action != c10d.ActionRestore {
				return
			}
			if rank, in := d.State.Participants[named("b")]; !in || rank != 1 || d.State.RedundancyList.Has(named("b")) {
				t.Errorf("restored to %s", show(d.State, someTime))
			}
		})
	}
}

// TestMemberWithoutHeartbeat shows that a participant without heartbeat, whom upstream keeps for ever, is dead after a
// while like any other, and that we write our own if it is missing.
func TestMemberWithoutHeartbeat(t *testing.T) {
	s := c10d.NewState()
	s.Participants[named("a")], s.Participants[named("b")] = 0, 0
	if d := decide(s, c10d.WantJoin, c10d.Round{}); d.Action != c10d.ActionMarkDeadline || d.State.LastHeartbeats[named("b")].IsZero() {
		t.Errorf("without a deadline: %q, %v", d.Action, d.State)
	}
	s.Deadline = someTime.Add(30 * time.Second)
	if d := decide(s, c10d.WantJoin, c10d.Round{}); d.Action != c10d.ActionKeepAlive || d.State.LastHeartbeats[named("b")].IsZero() {
		t.Errorf("without our heartbeat: %q, %v", d.Action, d.State)
	}
	set := c10d.DefaultSettings(1, 3)
	seen := c10d.NewObserver(set, named("b"))
	for at := time.Duration(0); at <= set.DeadAfter(); at += time.Second {
		if !seen.Alive(named("a")) && at > 0 {
			t.Errorf("dead after %v", at-time.Second)
		}
		seen.Observe(s, c10d.Instant{Mono: at, Wall: someTime.Add(at)})
	}
	if seen.Alive(named("a")) {
		t.Errorf("alive after %v without a heartbeat", set.DeadAfter())
	}
	if seen.Alive(named("z")) {
		t.Error("a node nobody has seen is alive")
	}
}

// TestSkew reads clocks that differ from ours from the heartbeats. What a poll every few seconds can show is bounds.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		skew time.Duration
		warn bool
	}{
		{0, false},
		{-time.Second, false},
		{time.Second, false},
		{3 * time.Second, true},
		{-4 * time.Second, true},
		{time.Minute, true},
		{-time.Hour, true},
	} {
		t.Run(fmt.Sprint(c.skew), func(t *testing.T) {
			set := c10d.DefaultSettings(1, 3)
			seen := c10d.NewObserver(set, named("b"))
			for at := time.Duration(0); at < 20*time.Second; at += 900 * time.Millisecond {
				s := completeState(map[string]int{"a": 0, "b": 1})
				beat := at.Truncate(5 * time.Second) // a writes every 5 s, we look more often
				s.LastHeartbeats[named("a")] = someTime.Add(beat + c.skew)
				seen.Observe(s, c10d.Instant{Mono: at, Wall: someTime.Add(at)})
			}
			got, warn := seen.Skew(named("a"))
			if warn != c.warn {
				t.Errorf("warns: %v, want %v (%v)", warn, c.warn, got)
			}
			if c.warn && (got.Abs() > c.skew.Abs() || got.Abs() < c.skew.Abs()-time.Second || (got > 0) != (c.skew > 0)) {
				t.Errorf("says %v, want at most %v and less by a poll", got, c.skew)
			}
		})
	}
	if _, warn := c10d.NewObserver(c10d.DefaultSettings(1, 3), named("b")).Skew(named("a")); warn {
		t.Error("warns of a node that nobody has seen")
	}
}

// TestCheck refuses complete rounds whose ranks cannot be: two workers would have one rank, and hang.
func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*c10d.State){
		"": func(*c10d.State) {},
		"nodes a_1_0 and b_1_0 both have rank 1 in complete round 3": func(s *c10d.State) { s.Participants[named("a")] = 1 },
		"node a_1_0 has rank -1 in complete round 3":                 func(s *c10d.State) { s.Participants[named("a")] = -1 },
		"round is -1, want at least 0":                               func(s *c10d.State) { s.Round = -1 },
	} {
		s := completeState(map[string]int{"a": 0, "b": 1})
		change(s)
		text, err := c10d.Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c10d.Decode(text); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("Decode of %s: %v, want %q", show(s, someTime), err, want)
		}
	}
}

// TestKind keeps a state that everybody has left of the kind that it was of: 1.x agents die of the other one.
func TestKind(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		for name, change := range map[string]func(*c10d.State){
			"as it was": func(*c10d.State) {},
			"noted by us": func(s *c10d.State) {
				s.Ranks, s.RanksRound = map[c10d.Node]int{named("a"): 0}, 2
				s.Naive, s.FQDN = legacy, legacy
			},
		} {
			s := c10d.NewState()
			s.Round = 3
			change(s)
			text, err := c10d.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = c10d.Decode(text); err != nil {
				t.Fatal(err)
			}
			set := c10d.DefaultSettings(1, 3)
			set.Legacy = legacy
			seen := c10d.NewObserver(set, named("b"))
			now := c10d.Instant{Mono: time.Hour, Wall: someTime}
			seen.Observe(s, now)
			d := c10d.Step(c10d.Input{
				State: s, Members: []c10d.Node{named("b")}, Settings: set, Now: now, Want: c10d.WantJoin,
				Deadline: 2 * time.Hour, Seen: seen,
			})
			if d.State == nil || d.State.Naive != legacy || d.State.FQDN != legacy {
				t.Errorf("%s, legacy %v: decides %q, and writes %+v", name, legacy, d.Action, d.State)
			}
		}
	}
}

// TestSettings checks upstream's defaults and that everything wrong is said at once.
func TestSettings(t *testing.T) {
	s := c10d.DefaultSettings(2, 4)
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if got := s.DeadAfter(); got != 15*time.Second {
		t.Errorf("dead after %v, want 15s", got)
	}
	for want, deadline := range map[c10d.Want]time.Duration{
		c10d.WantJoin: 601 * time.Second, c10d.WantExit: 601 * time.Second, c10d.WantClose: 31 * time.Second,
		c10d.WantStay: 6 * time.Second,
	} {
		if got := s.Deadline(want, time.Second); got != deadline {
			t.Errorf("want %d: deadline %v, want %v", want, got, deadline)
		}
	}
	err := c10d.Settings{MaxNodes: -1}.Validate()
	for _, part := range []string{
		"minimum number of nodes is 0, want at least 1", "maximum number of nodes is -1", "join timeout is 0s", "close timeout is 0s",
		"heartbeat timeout is 0s", "last call timeout is 0s", "keep-alive interval is 0s", "number of keep-alive attempts is 0",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("Validate = %v, want it to say %q", err, part)
		}
	}
}

// BenchmarkState4000 is what an agent spends on each read, decision and write in a job of 4,000 nodes.
func BenchmarkState4000(b *testing.B) {
	s := c10d.NewState()
	s.Complete = true
	for i := range 4000 {
		n := c10d.Node{Addr: fmt.Sprintf("node%04d.cluster.example.com", i), PID: int64(10000 + i)}
		s.Participants[n], s.LastHeartbeats[n] = i, someTime
	}
	text, err := c10d.Encode(s)
	if err != nil {
		b.Fatal(err)
	}
	set := c10d.DefaultSettings(1, 4000)
	self := c10d.Node{Addr: "node0000.cluster.example.com", PID: 10000}
	seen := c10d.NewObserver(set, self)
	now := c10d.Instant{Wall: someTime}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if _, err := c10d.Decode(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decide", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			now.Mono += time.Millisecond
			seen.Observe(s, now)
			c10d.Step(c10d.Input{
				State: s, Members: []c10d.Node{self}, Settings: set, Now: now, Want: c10d.WantStay, Seen: seen,
				Round: c10d.Round{Ranks: s.Participants},
			})
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if _, err := c10d.Encode(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

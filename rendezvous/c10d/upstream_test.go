package c10d_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// scene is a state at one moment with what an agent has seen before it.
type scene struct {
	state    *c10d.State
	self     c10d.Node
	settings c10d.Settings
	now      c10d.Instant
	want     c10d.Want
	deadline time.Duration
	seen     *c10d.Observer
	// What is left of the state without the dead.
	living *c10d.State
}

// randomScene makes a state whose heartbeats and deadline were written up to 25 s ago, by clocks that agree, and lets
// an observer see them appear. Ages at which the two ways to tell time differ by less than a step are left out.
func randomScene(r *rand.Rand) scene {
	minNodes := 1 + r.IntN(3)
	sc := scene{settings: c10d.DefaultSettings(minNodes, minNodes+r.IntN(3)), want: c10d.Want(r.IntN(4))}
	sc.now = c10d.Instant{Mono: 1000 * time.Second, Wall: someTime}
	sc.deadline = sc.now.Mono + time.Duration(r.IntN(40)-12)*time.Second
	s := c10d.NewState()
	s.Round, s.Closed, s.Complete = r.IntN(3), r.IntN(8) == 0, r.IntN(2) == 0
	ages := map[c10d.Node]int{}
	for i := range 1 + r.IntN(5) {
		node := c10d.Node{Addr: string(rune('a' + r.IntN(5))), PID: int64(i)}
		if i == 0 {
			sc.self = node
			if r.IntN(4) == 0 {
				continue
			}
		}
		switch r.IntN(5) {
		case 0:
			s.WaitList[node] = struct{}{}
		case 1:
			s.RedundancyList[node] = struct{}{}
		default:
			s.Participants[node] = 0
		}
		ages[node] = r.IntN(12)
		if i > 0 && r.IntN(8) == 0 {
			ages[node] = 16 + r.IntN(9)
		}
		s.LastHeartbeats[node] = sc.now.Wall.Add(-time.Duration(ages[node]) * time.Second)
	}
	if s.Complete {
		for rank, n := range slices.SortedFunc(maps.Keys(s.Participants), c10d.Node.Compare) {
			s.Participants[n] = rank
		}
	} else if r.IntN(2) == 0 {
		age := r.IntN(59)
		if age >= 30 {
			age++
		}
		s.Deadline = sc.now.Wall.Add(sc.settings.LastCall - time.Duration(age)*time.Second)
	}
	sc.state, sc.living = s, s.Clone()
	sc.seen = c10d.NewObserver(sc.settings, sc.self)
	for ago := 60; ago >= 0; ago-- {
		then := c10d.Instant{Mono: sc.now.Mono - time.Duration(ago)*time.Second, Wall: sc.now.Wall.Add(-time.Duration(ago) * time.Second)}
		past := s.Clone()
		for n, stamp := range past.LastHeartbeats {
			if stamp.After(then.Wall) {
				past.LastHeartbeats[n] = stamp.Add(-10 * time.Minute)
			}
		}
		if past.Deadline.After(then.Wall.Add(sc.settings.LastCall)) {
			past.Deadline = time.Time{}
		}
		sc.seen.Observe(past, then)
	}
	removed := false
	for n, age := range ages {
		if age > 15 {
			_, in := sc.living.Participants[n]
			removed = removed || in
			delete(sc.living.Participants, n)
			delete(sc.living.WaitList, n)
			delete(sc.living.RedundancyList, n)
		}
	}
	if l := sc.living; removed && l.Complete && len(l.Participants) == 0 {
		l.Complete, l.Round = false, l.Round+1
	} else if removed && !l.Complete && len(l.Participants) < minNodes {
		l.Deadline = time.Time{}
	}
	return sc
}

// deviation says where we mean to do something else than upstream, and what.
func (sc scene) deviation() (why string, action c10d.Action) {
	s, n := sc.living, len(sc.living.Participants)
	_, in := s.Participants[sc.self]
	spare, waits := s.RedundancyList.Has(sc.self), s.WaitList.Has(sc.self)
	late, lowest, highest := sc.now.Mono > sc.deadline, sc.settings.MinNodes, sc.settings.MaxNodes
	lost := len(s.Participants) < len(sc.state.Participants)
	switch {
	case sc.want == c10d.WantExit && waits && !in && !late:
		return "an exit leaves the wait list too", c10d.ActionRemoveFromWaitList
	case sc.want == c10d.WantExit && spare && !in && !late:
		return "an exit leaves the redundancy list too", c10d.ActionRemoveFromRedundancyList
	case sc.want == c10d.WantExit && (waits || spare) && !in:
		return "an exit that is late", c10d.ActionErrorTimeout
	case sc.want != c10d.WantJoin || s.Closed:
	case spare && n != highest && n+len(s.WaitList) >= highest:
		return "a spare leaves places to those who restart", 0
	case spare:
	case s.Complete && in && lost:
		return "a round that has lost a member does not begin", c10d.ActionRemoveFromParticipants
	case s.Complete && in, late:
	case s.Complete && waits && n >= highest:
		return "who waits for a full round becomes a spare", c10d.ActionAddToRedundancyList
	case s.Complete:
	case in && n == highest:
		return "a full round is complete at once", c10d.ActionMarkComplete
	case in && n >= lowest && n <= highest && s.Deadline.IsZero():
		return "a last call that nobody made", c10d.ActionMarkDeadline
	case !in && n >= highest:
		return "no more participants than our maximum", c10d.ActionAddToRedundancyList
	case !in && n+1 > lowest && n+1 < highest && s.Deadline.IsZero():
		return "a last call that nobody made, with our coming", c10d.ActionAddToParticipants
	}
	return "", 0
}

// TestSameAsUpstream compares our decisions with those of the operations of the real PyTorch, state by state: the
// action and what is written. Where we mean to differ, our action is checked instead, and each such rule must have come
// up.
func TestSameAsUpstream(t *testing.T) {
	u := askUpstream(t, testutil.Torch(t))
	r := rand.New(rand.NewPCG(9, 10))
	same, differ := map[string]int{}, map[string]int{}
	wants := map[c10d.Want]string{c10d.WantJoin: "join", c10d.WantStay: "stay", c10d.WantExit: "exit", c10d.WantClose: "close"}
	names := map[string]string{
		"GRACEFUL_EXIT": "spared", "MARK_RENDEZVOUS_COMPLETE": "mark complete", "MARK_RENDEZVOUS_CLOSED": "mark closed",
	}
	for i := range testutil.Count(2000, 200000) {
		sc := randomScene(r)
		if sc.want == c10d.WantStay {
			// Upstream's keep-alive does nothing but write; ours is compared where it writes too.
			if _, in := sc.living.Participants[sc.self]; !in || !sc.living.Complete ||
				sc.now.Wall.Sub(sc.state.LastHeartbeats[sc.self]) < sc.settings.KeepAlive {
				continue
			}
			sc.deadline = sc.now.Mono + time.Second
		}
		d := c10d.Step(c10d.Input{
			State: sc.state, Members: []c10d.Node{sc.self}, Settings: sc.settings, Now: sc.now, Want: sc.want, Deadline: sc.deadline,
			Seen:  sc.seen,
			Round: c10d.Round{Number: sc.state.Round, Ranks: sc.state.Participants},
		})
		if why, action := sc.deviation(); why != "" {
			differ[why]++
			if action != 0 && d.Action != action {
				t.Fatalf("scene %d (%s): we decide %q, want %q\n%v %s in %s", i, why, d.Action, action, sc.want, sc.self,
					show(sc.state, someTime))
			}
			continue
		}
		text, err := c10d.Encode(sc.state)
		if err != nil {
			t.Fatal(err)
		}
		request := upstreamStep{
			Want: wants[sc.want], Node: nodeJSON(sc.self), Min: sc.settings.MinNodes, Max: sc.settings.MaxNodes,
			Wall: sc.now.Wall.UnixMicro(), Mono: sc.now.Mono.Seconds(), Deadline: sc.deadline.Seconds(), Text: new(string(text)),
		}
		answer := u.step(request)
		name, ok := names[answer.Action]
		if !ok {
			name = strings.ToLower(strings.ReplaceAll(answer.Action, "_", " "))
		}
		if name != d.Action.String() {
			t.Fatalf("scene %d: we decide %q (%s), upstream %q\n%s wants to %s, %v of its time left, at most %d, in %s", i, d.Action,
				d.Reason, answer.Action,
				sc.self, wants[sc.want], sc.deadline-sc.now.Mono, sc.settings.MaxNodes, show(sc.state, someTime))
		}
		if answer.Deadline != d.Deadline.Seconds() {
			t.Fatalf("scene %d: %q moves our deadline to %v, upstream's to %v", i, d.Action, d.Deadline.Seconds(), answer.Deadline)
		}
		if (answer.Text != nil) != (d.State != nil) {
			t.Fatalf("scene %d: %q writes %v, upstream %v", i, d.Action, d.State, answer.Text)
		}
		same[fmt.Sprint(wants[sc.want], " ", name)]++
		if d.State == nil {
			continue
		}
		want, err := c10d.Decode([]byte(*answer.Text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.State, equalStates, cmpopts.IgnoreFields(c10d.State{}, "Ranks", "RanksRound")); diff != "" {
			t.Fatalf("scene %d: %q of %s in %s writes something else (-upstream +we):\n%s", i, d.Action, sc.self,
				show(sc.state, someTime), diff)
		}
	}
	for _, w := range []string{
		"join add to participants", "join add to wait list", "join add to redundancy list", "join remove from participants",
		"join remove from wait list", "join remove from redundancy list", "join mark complete", "join keep alive", "join sync",
		"join finish", "join spared", "join error closed", "join error timeout", "stay keep alive", "exit remove from participants",
		"exit finish", "exit error timeout", "close mark closed", "close finish", "close error timeout",
	} {
		if same[w] < 3 {
			t.Errorf("%q was compared %d times, want at least 3", w, same[w])
		}
	}
	if len(differ) != 10 {
		t.Errorf("deviations that came up: %v, want 10", differ)
	}
	t.Logf("same: %v", same)
	t.Logf("other on purpose: %v", differ)
}

// TestMixedSimulation is TestSimulation with agents of the real PyTorch among ours, whose clocks are up to a minute
// away from theirs. What agents of upstream do not notice makes their workers fail in the end, see theirs. Every write
// and join is checked in all fleets; where all end, in those that have a place for everybody.
func TestMixedSimulation(t *testing.T) {
	u := askUpstream(t, testutil.Torch(t))
	settled := 0
	for seed := range uint64(testutil.Count(12, 300)) {
		f := simulate(t, seed, u, seed%2 == 0)
		f.run(2 * quiet)
		// Upstream's agents that are too many for a round go on waiting for it, and its members restart for them
		// without end.
		if f.size() <= f.settings.MaxNodes {
			f.settled()
			settled++
		}
	}
	if settled < 3 {
		t.Errorf("%d fleets had no more nodes than places, want at least 3", settled)
	}
}

package checkpointd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"muster/checkpointd/planner"
	"muster/internal/wire"
)

// simNode is a node of a simulated job: the real table of its slots, and reports and views that are on their way.
type simNode struct {
	addr    string
	slots   *slotTable
	rank    int
	seq     uint64
	ended   bool
	gone    bool // not heard of any more in this round
	loads   int
	reads   bool // what its own rank has saved, and nothing else
	writing *slot
	spoilt  map[*slot]bool // what they hold is not what was saved, and nobody has noticed
	attempt string
	written []planner.Written
	sent    *planner.Report
	view    *planner.View
	told    planner.SetView
}

// sound reports whether a copy is what was saved; one that is not is given up.
func (n *simNode) sound(s *slot) bool {
	if n.spoilt[s] && s.State == slotReady {
		s.State = slotTorn
	}
	return s.State == slotReady
}

func (n *simNode) report(k planner.Key) *planner.Report {
	n.seq++
	for shard := range n.slots.shards {
		for _, m := range n.told.Verify {
			if s := n.slots.at(shard, m); s != nil {
				n.sound(s)
			}
		}
	}
	sr := planner.SetReport{
		Key: k, Saves: []int{n.rank}, Begun: n.slots.begun[n.rank], Loads: n.loads, Attempt: n.attempt, Written: slices.Clone(n.written),
		Committed: planner.Never, Verified: n.told.Verify,
	}
	if n.reads {
		sr.Reads = []int{n.rank}
	}
	for shard, slots := range n.slots.shards {
		for _, s := range slots {
			if s.State == slotReady {
				sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: s.At, Persist: s.At.Step%3 == 0})
			}
		}
	}
	return &planner.Report{Seq: n.seq, Addr: n.addr, Ended: n.ended, Sets: []planner.SetReport{sr}}
}

// carryOut does what Service.carryOutLocked does, without copies of anything.
func (n *simNode) carryOut(v planner.SetView) {
	n.told = v
	n.slots.told = &toldMoments{v.Complete, v.Dead}
	st := &set{slots: n.slots}
	st.repin(v.Pin)
	if v.Write == nil {
		if !v.Busy {
			n.attempt, n.written = "", nil
		}
		return
	}
	if n.attempt != v.Write.Attempt {
		n.attempt, n.written = v.Write.Attempt, nil
	}
}

// sim is a job whose messages come late, and whose nodes and disk fail.
type sim struct {
	t       *rapid.T
	k       planner.Key
	leader  *planner.Leader
	nodes   []*simNode
	round   int
	born    int
	disk    []moment // what was committed
	seen    moment   // the newest that was shown as complete, and that no node was lost since, nor a copy damaged
	attempt int
	files   map[string]*simNode // by attempt and shard: who has begun to write that
}

// era is that of the round, whose part by chance is larger and smaller than that of the one before by turns.
func (s *sim) era() uint64 { return firstEra(uint64(s.round)+1, uint64(s.round)%2*77) }

func (s *sim) begin() {
	s.leader.BeginRound(len(s.nodes), s.era(), map[bool]string{true: "again"}[s.round > 0])
	for rank, n := range s.nodes {
		n.rank, n.seq, n.loads, n.ended, n.gone, n.view, n.sent, n.told.Decisions = rank, 0, 0, false, false, nil, nil, nil
		if n.writing != nil {
			n.writing.State = slotTorn
			n.writing = nil
		}
	}
}

// act carries out what the leader asks for. A disk may fail.
func (s *sim) act(fail func() bool) {
	for actions := s.leader.Actions(); len(actions) > 0; actions = s.leader.Actions() {
		for _, a := range actions {
			switch a.Kind {
			case planner.Open:
				s.leader.Opened(s.k, "", nil)
			case planner.Choose:
				d := planner.Decision{Source: planner.FromNone}
				if len(s.disk) > 0 {
					d = planner.Decision{Source: planner.FromDisk, At: s.disk[len(s.disk)-1]}
				}
				s.leader.Chosen(s.k, d)
			case planner.Commit:
				for shard, r := range a.Results {
					if want := fmt.Sprintf(`"%d %v %s"`, shard, a.At, a.Attempt); string(r) != want {
						s.t.Fatalf("shard %d of %v was committed with %s, want %s", shard, a.At, r, want)
					}
				}
				if fail() {
					s.leader.Committed(s.k, a.Attempt, errors.New("disk full"))
					continue
				}
				if len(s.disk) > 0 && a.At.Compare(s.disk[len(s.disk)-1]) <= 0 {
					s.t.Fatalf("%v was committed after %v", a.At, s.disk)
				}
				s.disk = append(s.disk, a.At)
				s.leader.Committed(s.k, a.Attempt, nil)
			case planner.Abort: // there is nothing to remove
			}
		}
	}
}

// damage spoils what a node has of a shard.
func (s *sim) damage(n *simNode, shard int) {
	for _, slot := range n.slots.shards[shard] {
		if slot.State == slotReady {
			n.spoilt[slot] = true
		}
	}
	if !slices.Contains(s.complete(), s.seen) {
		s.seen = planner.Never
	}
}

// complete are the moments of which all shards are there in truth and sound, newest first.
func (s *sim) complete() (found []moment) {
	have := map[moment]map[int]bool{}
	for _, n := range s.nodes {
		for shard, slots := range n.slots.shards {
			for _, slot := range slots {
				if slot.State == slotReady && !n.spoilt[slot] {
					if have[slot.At] == nil {
						have[slot.At] = map[int]bool{}
					}
					have[slot.At][shard] = true
				}
			}
		}
	}
	for m, shards := range have {
		if len(shards) == s.k.Shards {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b moment) int { return b.Compare(a) })
	return found
}

// TestPlanner: whatever comes late, fails or is lost, a step that was shown as complete is not given up for one that is
// not; what is committed is of one moment and one attempt; all restore the same; and in the end all is on disk.
func TestPlanner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4).Draw(t, "nodes")
		s := &sim{t: t, k: planner.Key{Dir: "/d", Shards: size}, seen: planner.Never, files: map[string]*simNode{}}
		s.leader = planner.NewLeader(rapid.IntRange(1, 3).Draw(t, "replicas"), func() string { s.attempt++; return fmt.Sprint(s.attempt) })
		s.leader.More = true
		if s.leader.Local = rapid.Bool().Draw(t, "local"); s.leader.Local {
			s.leader.Replicas = 1
		}
		add := func() *simNode {
			s.born++
			n := &simNode{addr: fmt.Sprint("node", s.born), slots: newSlotTable(size), reads: s.leader.Local, spoilt: map[*slot]bool{}}
			n.slots.told = &toldMoments{}
			return n
		}
		for range size {
			s.nodes = append(s.nodes, add())
		}
		s.begin()
		rules := slotRules{Slots: 2, Room: func() bool { return true }}
		fail := func() bool { return rapid.IntRange(0, 5).Draw(t, "disk") == 0 }
		decided := map[string]planner.Decision{}
		step := int64(0)
		deliver := func(n *simNode) {
			if n.sent != nil && !n.gone {
				s.leader.Report(n.rank, n.sent)
				n.sent = nil
				s.act(fail)
			}
		}
		show := func(n *simNode) {
			v := s.leader.View(n.rank)
			if len(v.Sets) == 0 {
				return
			}
			sv := v.Sets[0]
			if len(sv.Complete) > 0 && sv.Complete[0].Compare(s.seen) > 0 && slices.Contains(s.complete(), sv.Complete[0]) {
				s.seen = sv.Complete[0]
			}
			for i, d := range sv.Decisions {
				key := fmt.Sprint(s.round, i)
				if old, ok := decided[key]; ok && (old.Source != d.Source || old.At != d.At) {
					t.Fatalf("decision %s was %+v, and is %+v", key, old, d)
				}
				decided[key] = d
				if s.leader.Local && (d.From != nil || len(sv.Fetch) > 0) {
					t.Fatalf("nodes without a token are to get copies: %+v", sv)
				}
			}
			if s.leader.Local && slices.ContainsFunc(v.Addrs, func(addr string) bool { return addr != "" }) {
				t.Fatalf("nodes without a token are to ask each other for something: %v", v.Addrs)
			}
			n.view = &v
		}
		actions := map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if c := s.complete(); s.seen != planner.Never && (len(c) == 0 || c[0].Compare(s.seen) < 0) {
					t.Fatalf("%v was shown as complete, there is %v", s.seen, c)
				}
			},
			"save": func(t *rapid.T) {
				n := s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]
				if n.writing != nil {
					n.writing.State = slotReady
					n.writing = nil
					return
				}
				if n.ended {
					return
				}
				if n.rank == 0 {
					step++
				}
				at := moment{Era: s.era(), Step: step}
				if kind, slot := n.slots.victim(n.rank, rules); kind == takeSlot && at.Compare(n.slots.begun[n.rank]) > 0 {
					if slot == nil {
						slot = n.slots.add(n.rank, 1)
					}
					n.slots.begin(n.rank, slot, at, 1)
					n.writing = slot
					delete(n.spoilt, slot)
				}
			},
			"report":  func(t *rapid.T) { n := s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]; n.sent = n.report(s.k) },
			"deliver": func(t *rapid.T) { deliver(s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]) },
			"show":    func(t *rapid.T) { show(s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]) },
			"carryOut": func(t *rapid.T) {
				if n := s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]; n.view != nil {
					n.carryOut(n.view.Sets[0])
					n.view = nil
				}
			},
			"write": func(t *rapid.T) { s.write(s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")], fail()) },
			"fetch": func(t *rapid.T) { s.fetch(s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]) },
			"damage": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					s.damage(s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")], rapid.IntRange(0, size-1).Draw(t, "shard"))
				}
			},
			"exchange": func(t *rapid.T) { // all hear of each other, and get copies; their workers may have ended
				ends := rapid.Bool().Draw(t, "ended")
				for _, n := range s.nodes {
					n.ended = n.ended || ends && n.writing == nil
					n.sent = n.report(s.k)
					deliver(n)
				}
				for _, n := range s.nodes {
					if show(n); n.view != nil && !n.gone {
						n.carryOut(n.view.Sets[0])
						n.view = nil
					}
					s.fetch(n)
				}
			},
			"load": func(t *rapid.T) { n := s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]; n.loads++ },
			"gone": func(t *rapid.T) {
				if n := s.nodes[rapid.IntRange(0, size-1).Draw(t, "node")]; rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					n.gone = true
					s.leader.Gone(n.rank)
					s.act(fail)
				}
			},
			"give up": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					s.leader.GiveUp()
					for _, n := range s.nodes {
						n.gone = n.gone || n.seq == 0
					}
					s.act(fail)
				}
			},
			"round": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					return
				}
				s.round++
				step = max(0, step-2) // some of it is done again
				if rapid.Bool().Draw(t, "lost") {
					s.nodes[rapid.IntRange(0, size-1).Draw(t, "which")] = add()
					s.seen = planner.Never
				}
				if rapid.Bool().Draw(t, "moved") {
					s.nodes = append(s.nodes[1:], s.nodes[0])
				}
				s.begin()
			},
		}
		t.Repeat(actions)
		// Everything comes through, and nothing fails any more.
		never := func() bool { return false }
		if slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.gone }) {
			s.round++
			s.begin()
		}
		s.leader.Last()
		s.act(never)
		for i := range 60 {
			if i == 20 { // copies have been spread
				for _, n := range s.nodes {
					if rapid.Bool().Draw(t, "damaged") {
						s.damage(n, rapid.IntRange(0, size-1).Draw(t, "shard"))
					}
				}
			}
			for _, n := range s.nodes {
				if n.writing != nil {
					n.writing.State = slotReady
					n.writing = nil
				}
				n.ended = n.ended || i >= 20
				n.sent = n.report(s.k)
				s.leader.Report(n.rank, n.sent)
				s.act(never)
				if v := s.leader.View(n.rank); len(v.Sets) > 0 {
					n.carryOut(v.Sets[0])
				}
				s.write(n, false)
				s.fetch(n)
			}
		}
		if v := s.leader.View(0); !v.Drained {
			text, _ := json.Marshal(v)
			t.Fatalf("not at an end: %s", text)
		}
		c := s.complete()
		if failed := len(c) > 0 && s.leader.View(0).Sets[0].Failed == "disk full"; !failed && len(c) > 0 &&
			(len(s.disk) == 0 || s.disk[len(s.disk)-1].Compare(c[0]) < 0) {
			t.Fatalf("%v is in memory, on disk is %v, and the disk was not to blame: %q", c[0], s.disk, s.leader.View(0).Sets[0].Failed)
		}
		damaged := slices.ContainsFunc(s.nodes, func(n *simNode) bool { return len(n.spoilt) > 0 })
		if len(c) > 0 && s.leader.Replicas > 1 && size > 1 && !damaged { // what is damaged is not copied again before the next step
			for shard := range size {
				copies := 0
				for _, n := range s.nodes {
					if n.slots.at(shard, c[0]) != nil {
						copies++
					}
				}
				if copies < min(s.leader.Replicas, size) {
					t.Fatalf("shard %d of %v is on %d nodes", shard, c[0], copies)
				}
			}
		}
	})
}

// TestPlannerNodeAway: a node's connection breaks, and what it has stays there: a step that is whole with it is not
// given up.
func TestPlannerNodeAway(t *testing.T) {
	k, at := planner.Key{Dir: "/d", Shards: 2}, moment{Step: 1}
	l := planner.NewLeader(1, func() string { return "attempt" })
	l.BeginRound(2, 0, "")
	report := func(node int, seq uint64, saves ...int) {
		l.Report(node, &planner.Report{Seq: seq, Addr: fmt.Sprint(node), Sets: []planner.SetReport{{
			Key: k, Saves: saves, Begun: at, Copies: []planner.Copy{{Shard: node, At: at}}, Committed: planner.Never,
		}}})
	}
	report(0, 1, 0)
	report(1, 1, 1)
	l.Opened(k, "", nil)
	if v := l.View(0).Sets[0]; !slices.Contains(v.Complete, at) {
		t.Fatalf("not complete: %+v", v)
	}
	report(1, 2) // its worker has ended
	if v := l.View(0).Sets[0]; !slices.Contains(v.Complete, at) || len(v.Dead) > 0 {
		t.Errorf("a step was given up whose copies are all there: %+v", v)
	}
	l.Gone(1)
	if v := l.View(0).Sets[0]; len(v.Dead) > 0 {
		t.Errorf("a step was given up whose copies may all be there: %+v", v)
	}
}

// TestPlannerWantedEarly: a node wants to know the digest of a copy before the leader hears that another node has it. It
// is told once that node has said so, without asking again.
func TestPlannerWantedEarly(t *testing.T) {
	k, at := planner.Key{Dir: "/d", Shards: 2}, moment{Step: 1}
	l := planner.NewLeader(1, func() string { return "attempt" })
	l.BeginRound(2, 0, "")
	sum := planner.Sum{Shard: 0, At: at, Digest: planner.Digest{7}, Made: true}
	report := func(node int, seq uint64, sr planner.SetReport) {
		sr.Key, sr.Committed, sr.Begun = k, planner.Never, at
		l.Report(node, &planner.Report{Seq: seq, Addr: fmt.Sprint(node), Sets: []planner.SetReport{sr}})
	}
	report(0, 1, planner.SetReport{Saves: []int{0}})
	report(1, 1, planner.SetReport{Saves: []int{1}, Want: []planner.Copy{{Shard: 0, At: at}}})
	l.Opened(k, "", nil)
	copies := []planner.Copy{{Shard: 0, At: at}}
	report(0, 2, planner.SetReport{Saves: []int{0}, Copies: copies})
	if v := l.View(0).Sets[0]; !slices.Contains(v.Sum, copies[0]) {
		t.Errorf("its node is not asked for the digest: %+v", v)
	}
	report(0, 3, planner.SetReport{Saves: []int{0}, Copies: copies, Sums: []planner.Sum{sum}})
	if v := l.View(1).Sets[0]; !slices.Contains(v.Sums, sum) {
		t.Errorf("who wants the digest is not told: %+v", v)
	}
}

// Of two workers on one node one has gone on: the step that only the other has saved is waited for no more. A step that
// says what is on disk is not written when the workers have ended.
func TestPlannerWithinNode(t *testing.T) {
	k := planner.Key{Dir: "/d", Shards: 2}
	l := planner.NewLeader(1, func() string { return "attempt" })
	l.Local, l.More = true, true
	l.BeginRound(1, 0, "")
	seq := uint64(0)
	report := func(sr planner.SetReport) planner.SetView {
		seq++
		sr.Key, sr.Committed = k, planner.Never
		r := &planner.Report{Seq: seq, Addr: "a", Sets: []planner.SetReport{sr}}
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		l.Report(0, r)
		return l.View(0).Sets[0]
	}
	first, next := moment{Step: 4}, moment{Step: 5}
	sr := planner.SetReport{
		Saves: []int{0, 1}, Begun: first, Begins: []moment{first, first}, Copies: []planner.Copy{{Shard: 0, At: first, Persist: true}},
	}
	report(sr)
	l.Opened(k, "", nil)
	if v := report(sr); !v.Busy || len(v.Dead) > 0 {
		t.Errorf("the other worker may save it yet: %+v", v)
	}
	sr.Begins = []moment{first, next}
	if v := report(sr); v.Busy || !slices.Contains(v.Dead, first) {
		t.Errorf("nobody saves the other shard of it any more: %+v", v)
	}
	sr.Copies = []planner.Copy{{Shard: 0, At: next}, {Shard: 1, At: next}}
	for _, same := range [][]moment{{next}, nil} {
		l.BeginRound(1, 1, "the workers have ended")
		sr.Same = same
		if v := report(sr); !slices.Contains(v.Complete, next) || v.Busy != (same == nil) {
			t.Errorf("on disk already: %v; it is shown %+v", same, v)
		}
	}
}

// copiesReport is what a node says that has copies of shards of a moment, and has written what it was told to.
func copiesReport(k planner.Key, node int, at moment, order *planner.Order, shards []int) planner.SetReport {
	sr := planner.SetReport{Key: k, Saves: []int{node}, Begun: at, Committed: planner.Never}
	for _, shard := range shards {
		sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: at})
	}
	if order != nil {
		sr.Attempt = order.Attempt
		for _, shard := range order.Shards {
			sr.Written = append(sr.Written, planner.Written{Shard: shard, Result: json.RawMessage(`"written"`)})
		}
	}
	return sr
}

// TestPlannerDamagedWhileWritten: a copy is found damaged while it is written, and another node has a whole one: the
// step is written from that one at once. Where that, too, is damaged each time, it is given up after some attempts.
func TestPlannerDamagedWhileWritten(t *testing.T) {
	const reason = "the workers have ended"
	k, at := planner.Key{Dir: "/d", Shards: 2}, moment{Step: 1}
	attempt := 0
	l := planner.NewLeader(2, func() string { attempt++; return fmt.Sprint("attempt", attempt) })
	l.BeginRound(2, 0, "")
	seq := uint64(0)
	report := func(node int, ended bool, order *planner.Order, damaged bool, shards ...int) *planner.Order {
		seq++
		sr := copiesReport(k, node, at, order, shards)
		for i := range sr.Written {
			if damaged {
				sr.Written[i] = planner.Written{Shard: sr.Written[i].Shard, Err: "a checksum is wrong"}
			}
		}
		l.Report(node, &planner.Report{Seq: seq, Addr: fmt.Sprint(node), Ended: ended, Sets: []planner.SetReport{sr}})
		return l.View(node).Sets[0].Write
	}
	begin := func() (first, second *planner.Order) {
		report(0, false, nil, false, 0, 1)
		report(1, false, nil, false, 0, 1)
		l.Opened(k, "", nil)
		report(0, true, nil, false, 0, 1)
		second = report(1, true, nil, false, 0, 1)
		return report(0, true, nil, false, 0, 1), second
	}
	first, second := begin()
	if first == nil || second == nil || !slices.Equal(first.Shards, []int{0}) || !slices.Equal(second.Shards, []int{1}) || !second.Compare {
		t.Fatalf("for %s to be written: %+v, %+v", reason, first, second)
	}
	if again := report(1, true, second, true, 0); again != nil {
		t.Fatalf("what is damaged is to be written: %+v", again)
	}
	whole := report(0, true, first, false, 0, 1)
	v := l.View(0).Sets[0]
	if whole == nil || whole.Attempt == first.Attempt || !slices.Equal(whole.Shards, []int{0, 1}) || v.Failed != "" || !v.Busy {
		t.Fatalf("the other node has it whole, and is to write %+v: %+v", whole, v)
	}
	report(0, true, whole, false, 0, 1)
	var kinds []planner.ActionKind
	for _, a := range l.Actions() {
		kinds = append(kinds, a.Kind)
	}
	if !slices.Equal(kinds, []planner.ActionKind{planner.Open, planner.Abort, planner.Commit}) {
		t.Fatalf("asked for: %v", kinds)
	}
	l.Committed(k, whole.Attempt, nil)

	// Memory that spoils whatever comes into it: each node gets another copy from its peer before it is found again.
	at = moment{Step: 2}
	l.BeginRound(2, 0, "")
	begin()
	tries := map[string]bool{}
	for n := range 20 {
		report(1-n%2, true, nil, false, 0, 1)
		if o := report(n%2, true, nil, false, 0, 1); o != nil && slices.Contains(o.Shards, 1) {
			tries[o.Attempt] = true
			report(n%2, true, o, true, 0)
		}
	}
	if len(tries) != 3 {
		t.Errorf("tried %d times, want once and once more for each node", len(tries))
	}
	if v := l.View(0).Sets[0]; v.Failed == "" || v.Lost || v.Busy {
		t.Fatalf("given up: %+v", v)
	}
}

// TestPlannerWriterLeaves: a node that writes its part of a step leaves the round, whose workers have ended. It may write
// on, so nobody else writes the same file: it brings the part to the next round, and where it does not come, the step is
// written anew from the copies of others.
func TestPlannerWriterLeaves(t *testing.T) {
	k, at := planner.Key{Dir: "/d", Shards: 2}, moment{Step: 1}
	for _, then := range []string{"it comes again", "another node comes", "no round comes"} {
		attempt := 0
		l := planner.NewLeader(2, func() string { attempt++; return fmt.Sprint("attempt", attempt) })
		l.More = true
		l.BeginRound(2, 0, "")
		seq := uint64(0)
		report := func(node int, addr string, ended bool, order *planner.Order, shards ...int) {
			seq++
			sr := copiesReport(k, node, at, order, shards)
			l.Report(node, &planner.Report{Seq: seq, Addr: addr, Ended: ended, Sets: []planner.SetReport{sr}})
		}
		report(0, "first", false, nil, 0, 1)
		report(1, "second", false, nil, 0, 1)
		l.Opened(k, "", nil)
		report(1, "second", true, nil, 0, 1)
		report(0, "first", true, nil, 0, 1)
		first, second := l.View(0).Sets[0].Write, l.View(1).Sets[0].Write
		if first == nil || second == nil || !slices.Equal(first.Shards, []int{0}) || !slices.Equal(second.Shards, []int{1}) {
			t.Fatalf("to be written: %+v, %+v", first, second)
		}
		l.Gone(1)
		report(0, "first", true, first, 0, 1)
		if o := l.View(0).Sets[0].Write; o != nil {
			t.Fatalf("the second node may write its part still, and the first is to write %+v", o)
		}
		want := []planner.ActionKind{planner.Open, planner.Abort, planner.Commit}
		switch then {
		case "it comes again":
			want = []planner.ActionKind{planner.Open, planner.Commit}
			l.BeginRound(2, 1, "the workers start again")
			report(0, "first", true, first, 0, 1)
			report(1, "second", true, second, 0, 1)
		case "another node comes":
			l.BeginRound(2, 1, "the workers start again")
			report(1, "third", false, nil)
			report(0, "first", true, first, 0, 1)
		case "no round comes":
			l.Last()
		}
		if o := l.View(0).Sets[0].Write; then != "it comes again" {
			if o == nil || o.Attempt == first.Attempt || !slices.Equal(o.Shards, []int{0, 1}) {
				t.Fatalf("%s: the first node is to write %+v", then, o)
			}
			report(0, "first", true, o, 0, 1)
		}
		var kinds []planner.ActionKind
		for _, a := range l.Actions() {
			kinds = append(kinds, a.Kind)
			if a.Kind == planner.Abort && !a.Again {
				t.Errorf("%s: %q, and nothing of another attempt", then, a.Why)
			}
		}
		if v := l.View(0).Sets[0]; !slices.Equal(kinds, want) || v.Failed != "" {
			t.Errorf("%s: asked for %v, want %v: %q", then, kinds, want, v.Failed)
		}
	}
}

// TestPlannerDamagedReplica: a copy that a node had from another one and has given up, as it was damaged, is got again at
// once, and not only of the next step.
func TestPlannerDamagedReplica(t *testing.T) {
	k, at := planner.Key{Dir: "/d", Shards: 2}, moment{Step: 1}
	l := planner.NewLeader(2, func() string { return "attempt" })
	l.BeginRound(2, 0, "")
	seq := uint64(0)
	report := func(node int, shards ...int) {
		seq++
		sr := planner.SetReport{Key: k, Saves: []int{node}, Begun: at, Committed: planner.Never}
		for _, shard := range shards {
			sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: at})
		}
		l.Report(node, &planner.Report{Seq: seq, Addr: fmt.Sprint(node), Sets: []planner.SetReport{sr}})
	}
	fetches := func(want ...[]planner.Fetch) {
		t.Helper()
		for node, list := range want {
			if got := l.View(node).Sets[0].Fetch; !slices.Equal(got, list) {
				t.Errorf("node %d is to get %+v, want %+v", node, got, list)
			}
		}
	}
	report(0, 0)
	report(1, 1)
	l.Opened(k, "", nil)
	first, second := []planner.Fetch{{Shard: 1, At: at, From: 1}}, []planner.Fetch{{Shard: 0, At: at, From: 0}}
	fetches(first, second)
	report(0, 0, 1)
	report(1, 1, 0)
	fetches(nil, nil)
	report(1, 1)
	fetches(nil, second)
	report(1, 1, 0)
	fetches(nil, nil)
}

// write has a node write one of the shards that it was told to.
func (s *sim) write(n *simNode, fail bool) {
	o := n.told.Write
	if o == nil || n.attempt != o.Attempt {
		return
	}
	for _, shard := range o.Shards {
		if slices.ContainsFunc(n.written, func(w planner.Written) bool { return w.Shard == shard }) || n.slots.at(shard, o.At) == nil {
			continue
		}
		w, file := planner.Written{Shard: shard}, fmt.Sprint(o.Attempt, " ", shard)
		if first := s.files[file]; first != nil {
			s.t.Fatalf("%s writes shard %d in attempt %s, as %s has done", n.addr, shard, o.Attempt, first.addr)
		}
		s.files[file] = n
		switch {
		case o.Compare && !n.sound(n.slots.at(shard, o.At)):
			w.Err = "a checksum is wrong"
		case fail:
			w.Err = "disk full"
		default:
			w.Result, _ = json.Marshal(fmt.Sprintf("%d %v %s", shard, o.At, o.Attempt))
		}
		n.written = append(n.written, w)
		return
	}
}

// fetch has a node get one of the copies that it was told to.
func (s *sim) fetch(n *simNode) {
	for _, f := range n.told.Fetch {
		if n.slots.at(f.Shard, f.At) != nil || f.From >= len(s.nodes) || s.nodes[f.From].slots.at(f.Shard, f.At) == nil {
			continue
		}
		if from := s.nodes[f.From]; !from.sound(from.slots.at(f.Shard, f.At)) {
			continue // its digest is another one
		}
		slot := n.slots.add(f.Shard, 1)
		slot.State, slot.At = slotReady, f.At
		return
	}
}

// A frame from another node that is no report harms nobody.
func FuzzReport(f *testing.F) {
	f.Add(`{"seq":1,"addr":"a","sets":[{"dir":"/d","shards":2,` +
		`"copies":[{"shard":5,"at":{"era":1,"step":1}}],"saves":[-1,9],"loads":99,"written":[{"shard":-1}]}]}`)
	f.Add(`{"seq":18446744073709551615,"sets":[{"dir":"","shards":-3}]}`)
	f.Fuzz(func(_ *testing.T, text string) {
		var r planner.Report
		if wire.Read(strings.NewReader(framed(text)), peerLimit, &r) != nil {
			return
		}
		if r.Check() != nil || len(r.Sets) > 0 && r.Sets[0].Shards > 1<<10 {
			return
		}
		l := planner.NewLeader(2, newAttempt)
		l.BeginRound(2, firstEra(1, 0), "")
		l.Gone(-1)
		l.Gone(2)
		l.Report(0, &r)
		for _, a := range l.Actions() {
			if a.Kind == planner.Open {
				l.Opened(a.Key, "", nil)
			}
		}
		l.Report(1, &r)
		l.View(0)
	})
}

func framed(text string) string {
	return string([]byte{byte(len(text) >> 24), byte(len(text) >> 16), byte(len(text) >> 8), byte(len(text))}) + text
}

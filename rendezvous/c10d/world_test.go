package c10d_test

import (
	"container/heap"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/rendezvous/c10d"
)

// world is a store with one register, and agents that change it by compare-and-set; its time is simulated. Reads,
// writes and their answers take what latency says each.
type world struct {
	t       testing.TB
	now     time.Duration
	text    string // what the store holds
	events  events
	seq     int
	latency func() time.Duration
	tell    func(a *agent, m move)    // hears of every decision
	rounds  map[int]map[c10d.Node]int // whom each round was completed with
	noted   map[int]bool              // whether that stands in the state: not where an agent of upstream completed it
	max     int
	memo    map[string]*c10d.State
}

// decode reads what the store holds; many agents read the same. Nobody may change what it returns.
func (w *world) decode(text string) *c10d.State {
	w.t.Helper()
	if s, ok := w.memo[text]; ok {
		return s
	}
	s, err := c10d.Decode([]byte(text))
	if err != nil {
		w.t.Fatalf("%v: the store holds what cannot be read: %v", w.now, err)
	}
	if len(w.memo) > 16 || w.memo == nil {
		w.memo = map[string]*c10d.State{}
	}
	w.memo[text] = s
	return s
}

// agent is one node's process and what drives it.
type agent struct {
	name   string
	brain  brain
	paused time.Duration // until when it is stopped
	dead   bool
	done   string // how it ended, "" while it runs
	epoch  int    // its events of an earlier epoch are void
}

// brain is one agent's decisions: ours, or those of a real torch.
type brain interface {
	// decide is shown what the store holds.
	decide(text string, now time.Duration) move
	// fail says that the workers failed: the agent begins a new round.
	fail(now time.Duration)
	// held returns the round that the workers run in.
	held() (c10d.Round, bool)
}

// move is a decision.
type move struct {
	action, reason string
	desired        string // to be written, "" for nothing
	wait           time.Duration
	joined         bool
	done           string
}

type event struct {
	at    time.Duration
	seq   int
	agent *agent
	epoch int
	do    func()
	// arrives says that this happens at the store: also for an agent that is stopped or dead meanwhile.
	arrives bool
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newWorld(t testing.TB, maxNodes int) *world {
	return &world{
		t: t, text: c10d.NoState, latency: func() time.Duration { return 0 }, tell: func(*agent, move) {},
		rounds: map[int]map[c10d.Node]int{}, noted: map[int]bool{}, max: maxNodes,
	}
}

func (w *world) push(a *agent, in time.Duration, arrives bool, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + in, w.seq, a, a.epoch, do, arrives})
}

// start lets a read the store now, and go on from there.
func (w *world) start(a *agent) { w.push(a, 0, false, func() { w.read(a) }) }

// poke makes a look now instead of at the end of its wait.
func (w *world) poke(a *agent) { a.epoch++; w.start(a) }

func (w *world) read(a *agent) {
	w.push(a, w.latency(), true, func() {
		text := w.text
		w.push(a, w.latency(), false, func() { w.decide(a, text) })
	})
}

func (w *world) decide(a *agent, text string) {
	m := a.brain.decide(text, w.now)
	w.tell(a, m)
	switch {
	case m.done != "":
		a.done = m.done
	case m.desired != "":
		w.push(a, w.latency(), true, func() {
			if w.text == text {
				w.written(w.text, m.desired)
				w.text = m.desired
			}
			now := w.text
			w.push(a, w.latency(), false, func() { w.decide(a, now) })
		})
	default:
		w.push(a, m.wait, false, func() { w.read(a) })
	}
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		switch {
		case e.arrives:
			e.do()
		case e.agent.dead || e.agent.done != "" || e.epoch != e.agent.epoch:
		case e.agent.paused > w.now:
			e.at = e.agent.paused
			heap.Push(&w.events, e)
		default:
			e.do()
		}
	}
	w.now = end
}

// written checks every write: rounds grow one by one, a round is completed with at most max nodes and dense ranks, and
// nobody comes or changes his rank once it is.
func (w *world) written(before, after string) {
	w.t.Helper()
	old, s := w.decode(before), w.decode(after)
	if old == nil { // also when the store lost what it had
		old = c10d.NewState()
		old.Round = s.Round
	}
	if s.Round < old.Round || s.Round > old.Round+1 {
		w.t.Fatalf("%v: round went from %d to %d", w.now, old.Round, s.Round)
	}
	if old.Closed && !s.Closed {
		w.t.Fatalf("%v: opened again", w.now)
	}
	if len(s.Participants) > w.max {
		w.t.Fatalf("%v: %d participants, at most %d may be", w.now, len(s.Participants), w.max)
	}
	for n := range s.Participants {
		if _, ok := s.LastHeartbeats[n]; !ok {
			w.t.Fatalf("%v: participant %s has no heartbeat: upstream's agents would keep it for ever", w.now, n)
		}
	}
	if !s.Complete {
		return
	}
	members, known := w.rounds[s.Round]
	if !known {
		members = maps.Clone(s.Participants)
		w.rounds[s.Round], w.noted[s.Round] = members, s.RanksRound == s.Round
		taken := make([]bool, len(members))
		for n, rank := range members {
			if rank < 0 || rank >= len(taken) || taken[rank] {
				w.t.Fatalf("%v: round %d is completed with rank %d of %s among %d", w.now, s.Round, rank, n, len(members))
			}
			taken[rank] = true
		}
	}
	for n, rank := range s.Participants {
		if was, ok := members[n]; !ok || was != rank {
			w.t.Fatalf("%v: %s has rank %d in round %d, which was completed with %v", w.now, n, rank, s.Round, members)
		}
	}
}

// checkRound checks that whoever joined, with the nodes that are his, sees the round as it was completed. Upstream's
// agents count who is left when they look, and so must we in a round that one of them completed: then only what is
// there can be checked.
func (w *world) checkRound(a *agent, nodes []c10d.Node, ours bool) {
	w.t.Helper()
	r, ok := a.brain.held()
	if !ok {
		w.t.Fatalf("%s joined nothing", a.name)
	}
	members := w.rounds[r.Number]
	first := true
	for _, node := range nodes {
		rank, in := members[node]
		if has, ok := r.Ranks[node]; in != ok || rank != has || in && first && rank != r.Rank {
			w.t.Fatalf("%v: %s joined round %d with rank %d of %s, it was completed with %v", w.now, a.name, r.Number, has, node, members)
		}
		first = first && !in
	}
	if first {
		w.t.Fatalf("%v: %s joined round %d, it was completed with %v", w.now, a.name, r.Number, members)
	}
	for n, rank := range r.Ranks {
		if was, in := members[n]; !in || was != rank {
			w.t.Fatalf("%v: %s joined round %d with %s as rank %d, it was completed with %v", w.now, a.name, r.Number, n, rank, members)
		}
	}
	if ours && w.noted[r.Number] && len(r.Ranks) != len(members) {
		w.t.Fatalf("%v: %s joined round %d with %v, it was completed with %v", w.now, a.name, r.Number, r.Ranks, members)
	}
}

// ours is an agent of ours: Step, and the order in which a Bridge asks it.
type ours struct {
	w        *world
	nodes    []c10d.Node // one, or a group of several
	gone     []c10d.Node // those that have left the group
	settings c10d.Settings
	skew     time.Duration // how far its wall clock is ahead
	boot     time.Duration // what its monotonic clock begins with
	seen     *c10d.Observer
	want     c10d.Want
	leaving  bool // whether it exits for good
	deadline time.Duration
	round    c10d.Round
	stopping time.Duration // how long its workers take to stop
	stopped  time.Duration // when they have stopped, 0 while they run
	excused  int
}

// newOurs makes an agent that joins.
func (w *world) newOurs(s c10d.Settings, skew time.Duration, nodes ...c10d.Node) (*agent, *ours) {
	b := &ours{w: w, nodes: nodes, settings: s, skew: skew, boot: 1000 * time.Hour, seen: c10d.NewObserver(s), want: c10d.WantExit}
	b.deadline = s.Deadline(b.want, w.now+b.boot)
	return &agent{name: nodes[0].Addr, brain: b}, b
}

func (b *ours) at(now time.Duration) c10d.Instant {
	return c10d.Instant{Mono: now + b.boot, Wall: someTime.Add(now + b.skew)}
}

func (b *ours) begin(want c10d.Want, now time.Duration) {
	b.want, b.deadline, b.stopped, b.excused = want, b.settings.Deadline(want, b.at(now).Mono), 0, 0
}

func (b *ours) fail(now time.Duration) {
	if b.want == c10d.WantStay {
		b.begin(c10d.WantExit, now)
	}
}

func (b *ours) held() (c10d.Round, bool) { return b.round, b.want == c10d.WantStay }

func (b *ours) decide(text string, now time.Duration) move {
	s := b.w.decode(text)
	at := b.at(now)
	all := c10d.Nodes{}
	for _, n := range slices.Concat(b.nodes, b.gone) {
		all[n] = struct{}{}
	}
	b.seen.SetOurs(all)
	b.seen.Observe(s, at)
	if b.stopped > 0 && now >= b.stopped {
		b.begin(c10d.WantExit, now)
	}
	d := c10d.Step(c10d.Input{
		State: s, Members: b.nodes, Leaving: b.gone, Settings: b.settings, Now: at, Want: b.want, Deadline: b.deadline, Round: b.round,
		Excused: b.excused, Seen: b.seen,
	})
	b.deadline = d.Deadline
	m := move{action: d.Action.String(), reason: d.Reason, wait: d.Wait}
	if d.State != nil {
		text, err := c10d.Encode(d.State)
		if err != nil {
			b.w.t.Fatal(err)
		}
		m.desired = string(text)
	}
	switch d.Action {
	case c10d.ActionNewRound:
		if b.stopped == 0 {
			b.stopped = now + b.stopping
		} else {
			m.action = "sync" // said before
		}
		m.wait = min(time.Second, b.stopped-now)
	case c10d.ActionSpared, c10d.ActionErrorClosed, c10d.ActionErrorTimeout:
		m.done = m.action
	case c10d.ActionFinish:
		switch {
		case b.want == c10d.WantJoin:
			b.begin(c10d.WantStay, now)
			b.round, m.joined = d.Round, true
		case b.want == c10d.WantExit && !b.leaving:
			b.begin(c10d.WantJoin, now)
		default:
			m.done = strings.TrimSpace(m.action + " " + map[c10d.Want]string{c10d.WantExit: "exit", c10d.WantClose: "close"}[b.want])
		}
	default:
	}
	return m
}

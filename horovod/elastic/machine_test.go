package elastic

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"muster/horovod"
	"muster/horovod/discovery"
)

// play is a machine with the processes and requests that follow from its effects.
type play struct {
	t       *rapid.T
	m       *machine
	now     time.Time
	procs   map[int]horovod.Slot // running, by id
	parked  map[string]bool
	states  map[string]int // the world in which a worker has the job's state, by slot, from the world it began in
	world   int
	stopped map[int]bool
	inUse   map[string]int // the process that has the slot
	blank   bool           // the current world has begun anew
}

// whim is a judge that says anything, as often as not nothing.
type whim struct{ t *rapid.T }

func (w whim) World(time.Time, int) {}

func (w whim) Exited(_ time.Time, rank, status int) Ruling {
	switch rapid.IntRange(0, 11).Draw(w.t, "ruling") {
	case 0:
		return Ruling{Over: true, Rank: rank, Status: max(1, status), Why: "of a whim"}
	case 1:
		return Ruling{Over: true, Success: true, Linger: time.Duration(rapid.IntRange(0, 9).Draw(w.t, "linger")) * time.Second}
	case 2, 3, 4, 5, 6:
		return Ruling{Anew: true, Delay: time.Duration(rapid.IntRange(0, 9).Draw(w.t, "delay")) * time.Second}
	}
	return Ruling{}
}

func (w whim) Lost(at time.Time, rank, status int) Ruling { return w.Exited(at, rank, status) }

func (w whim) Ended(time.Time) Ruling {
	return Ruling{Anew: rapid.IntRange(0, 3).Draw(w.t, "again") == 0}
}

func (w whim) Next(at time.Time) Ruling {
	if r := w.Exited(at, 0, 1); !r.Success {
		return r
	}
	return Ruling{}
}

func (p *play) do(effects []effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case beginWorld:
			if e.generation != p.world+1 {
				p.t.Fatalf("world %d follows world %d", e.generation, p.world)
			}
			p.world, p.blank = e.generation, false
			p.holds(e.slots)
		case release:
			if !p.parked[e.key] {
				p.t.Fatalf("%s is answered and has not asked", e.key)
			}
			delete(p.parked, e.key)
			if e.place == horovod.NoPlace {
				delete(p.states, e.key)
			}
		case startWorker:
			if e.after != 0 {
				delete(p.procs, e.after)
			}
			p.procs[e.id], p.inUse[e.slot.Key()] = e.slot, e.id
			delete(p.states, e.slot.Key())
			if p.world == 1 || p.blank {
				p.states[e.slot.Key()] = 1
			}
		case stopWorker:
			p.stopped[e.id] = true
		}
	}
}

// holds checks a new world.
func (p *play) holds(slots []horovod.Slot) {
	if n := len(slots); n < p.m.rules.MinNP || p.m.rules.MaxNP > 0 && n > p.m.rules.MaxNP || p.world == 1 && n < p.m.rules.NP {
		p.t.Fatalf("a world of %d workers under %+v", n, p.m.rules)
	}
	for i, s := range slots {
		if s.Rank != i {
			p.t.Fatalf("rank %d at %d", s.Rank, i)
		}
		if p.m.table.Bad(s.Host, p.now) {
			p.t.Fatalf("%s is in a world and blacklisted", s.Host)
		}
	}
	if p.world > 1 && p.m.rules.Judge != nil && len(p.procs) == 0 { // it begins anew
		p.blank = true
		return
	}
	// All take their state from rank 0.
	if p.world > 1 && (p.states[slots[0].Key()] == 0 || !p.parked[slots[0].Key()]) {
		p.t.Fatalf("rank 0 of world %d, %s, does not have the state", p.world, slots[0].Key())
	}
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minNP := rapid.IntRange(1, 3).Draw(t, "min")
		np := minNP + rapid.IntRange(0, 2).Draw(t, "np")
		maxNP := 0
		if rapid.Bool().Draw(t, "bounded") {
			maxNP = np + rapid.IntRange(0, 3).Draw(t, "max")
		}
		rules := Rules{NP: np, MinNP: minNP, MaxNP: maxNP, ResetLimit: rapid.IntRange(-1, 6).Draw(t, "resets"), Timeout: time.Minute}
		if rapid.Bool().Draw(t, "cooldown") {
			rules.Cooldown = discovery.Cooldown{Min: 5 * time.Second, Max: 20 * time.Second}
		}
		p := &play{
			t: t, now: time.Unix(1000, 0), procs: map[int]horovod.Slot{}, parked: map[string]bool{}, states: map[string]int{},
			stopped: map[int]bool{}, inUse: map[string]int{},
		}
		if rapid.Bool().Draw(t, "judged") {
			rules.Judge, rules.Wait = whim{t}, rapid.Bool().Draw(t, "wait")
			rules.Scope = rapid.SampledFrom([]Scope{ScopeHost, ScopeProcess, ScopeWorld}).Draw(t, "scope")
		}
		p.m = newMachine(rules, p.now)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			p.now = p.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			ids := slices.Sorted(maps.Keys(p.procs))
			switch what := rapid.IntRange(0, 9).Draw(t, "event"); {
			case what < 2:
				var hosts []horovod.Host
				for _, name := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order") {
					if n := rapid.IntRange(-1, 2).Draw(t, "slots"); n >= 0 {
						hosts = append(hosts, horovod.Host{Name: name, Slots: n})
					}
				}
				p.do(p.m.hosts(hosts, p.now))
			case what < 3:
				p.do(p.m.tick(p.now))
			case len(ids) == 0:
			case what < 8:
				which := rapid.IntRange(0, len(ids)-1).Draw(t, "asks")
				key := p.procs[ids[which]].Key()
				if at, ours := p.m.plan[key]; p.m.phase == running && ours && p.m.states[key] == "" && !p.m.held[key] &&
					p.inUse[key] == ids[which] {
					p.do(p.m.seen(at.Rank)) // it has begun to use its place
				}
				place, effects := p.m.ask(key, p.now)
				if place == "" {
					p.parked[key] = true
					p.states[key] = max(1, p.states[key])
				} else if place == horovod.NoPlace && len(effects) > 0 {
					t.Fatalf("an answer at once, and %v", effects)
				}
				p.do(effects)
			default:
				id := rapid.SampledFrom(ids).Draw(t, "ends")
				key := p.procs[id].Key()
				status := rapid.SampledFrom([]int{1, 1, 1, 137, 0}).Draw(t, "status")
				delete(p.procs, id)
				if p.inUse[key] == id {
					delete(p.states, key)
				}
				effects := p.m.ended(key, id, status, map[int]string{137: "gone"}[status], p.now)
				p.do(effects)
				if p.inUse[key] == id {
					delete(p.parked, key)
				}
			}
			p.check()
		}
		// Everything ends: no worker is waited for that is not there any more.
		for range 200 {
			if p.m.done() {
				break
			}
			p.now = p.now.Add(30 * time.Second)
			p.do(p.m.tick(p.now))
			for _, id := range slices.Sorted(maps.Keys(p.procs)) {
				slot := p.procs[id]
				delete(p.procs, id)
				p.do(p.m.ended(slot.Key(), id, 0, "", p.now))
			}
			p.check()
		}
		if !p.m.done() {
			t.Fatalf("in phase %s with %v and %v", p.m.phase, p.m.states, p.m.workers)
		}
	})
}

func (p *play) check() {
	p.t.Helper()
	switch p.m.phase {
	case running:
		if len(p.m.states) >= len(p.m.plan) && p.m.wonAt.IsZero() {
			p.t.Fatalf("every worker has a state and nothing is decided: %v", p.m.states)
		}
		for key, slot := range p.m.plan {
			_, runs := p.m.workers[key]
			if p.m.held[key] && (!runs || p.m.states[key] != "" || len(p.m.starting) == 0) {
				p.t.Fatalf("%s is held: %v, %v", key, p.m.states, p.m.starting)
			}
			if p.m.states[key] == "" && !runs && p.m.wonAt.IsZero() {
				p.t.Fatalf("%s is waited for and does not run (%+v)", key, slot)
			}
		}
	case over:
		for key := range p.parked {
			if w, runs := p.m.workers[key]; runs && !w.leaving && !p.m.rules.Wait {
				p.t.Fatalf("%s waits and nobody ends it", key)
			}
		}
		for id, slot := range p.procs {
			if p.inUse[slot.Key()] == id && !p.stopped[id] && !p.m.rules.Wait {
				p.t.Fatalf("process %d of %s runs on", id, slot.Key())
			}
		}
	case forming:
	}
}

// A host on which only the second worker has the state cannot hand it on: rank 0 would be a new worker, and all would
// begin anew.
func TestStateIsNotLost(t *testing.T) {
	now := time.Unix(1000, 0)
	m := newMachine(Rules{NP: 1, MinNP: 1, ResetLimit: -1, Timeout: time.Minute}, now)
	m.hosts([]horovod.Host{{Name: "a", Slots: 1}, {Name: "b", Slots: 1}}, now)
	m.hosts([]horovod.Host{{Name: "c", Slots: 2}, {Name: "b", Slots: 1}}, now)
	ask := func(key string) {
		if at, ours := m.plan[key]; ours {
			m.seen(at.Rank)
		}
		m.ask(key, now)
	}
	for _, key := range []string{"a:0", "b:0", "c:0", "c:1", "b:0"} {
		ask(key)
	}
	if m.generation != 3 || !m.held["c:1"] || !m.starting["c:0"] {
		t.Fatalf("world %d, held %v, starting %v", m.generation, m.held, m.starting)
	}
	m.ended("b:0", m.workers["b:0"].id, 1, "", now)
	if m.phase != over || m.verdict.Status == 0 {
		t.Errorf("world %d begins with rank 0 on %+v: phase %s, %+v", m.generation, m.order[0], m.phase, m.verdict)
	}
}

package elastic

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/notify"
)

// phase is what the machine waits for.
type phase string

const (
	forming phase = "forming" // enough slots for the next world
	running phase = "running" // every worker of the world to become ready or to end
	over    phase = "over"    // the last processes to end
)

// state is what became of a worker of the current world.
type state string

const (
	ready   state = "ready" // asks for its place in the next world
	success state = "success"
	failure state = "failure"
	dropped state = "dropped" // ended by us before it began
)

// Effects of an event, in the order in which they are to be done.
type (
	// beginWorld begins a world: the store is emptied for these slots.
	beginWorld struct {
		generation int
		slots      []horovod.Slot
	}
	// startWorker starts process id; after is the one that has the slot's place until then, 0 for none.
	startWorker struct {
		slot      horovod.Slot
		id, after int
	}
	// stopWorker ends process id. A worker that was told that it has no place gets some time to end by itself.
	stopWorker struct {
		id   int
		told bool
	}
	// release answers the parked request of a slot.
	release struct{ key, place string }
	// tell sends a change to a worker, until untell or the next one.
	tell struct {
		key    string
		change notify.Change
	}
	untell struct{}
	// blacklist tells people that a host is not used.
	blacklist struct {
		host  string
		until time.Time
	}
	// waiting tells them that a world waits for slots, outlasting that the job is decided and waits for workers to end.
	waiting    struct{ have, need int }
	outlasting struct{ workers int }
)

type effect any

// worker is a process that was started for a slot and has not ended.
type worker struct {
	id int
	// leaving says that it was told to end: what becomes of it is of no interest.
	leaving bool
	// begun says that it was in a world that has begun, and so has the job's state.
	begun bool
}

// machine decides what becomes of an elastic job. It knows no clock, process or connection. Its worlds are numbered
// from 1; a world is decided once, when every worker of it has a state.
type machine struct {
	rules Rules
	table *discovery.Table

	phase      phase
	generation int
	resets     int
	plan       map[string]horovod.Slot // of the current world
	order      []horovod.Slot          // the same by rank
	states     map[string]state
	// held are the workers that stay, until those that are starting have begun to look for the others: who looks first
	// gives up after gloo's time-out, which Python may need for its imports.
	held, starting map[string]bool
	holdUntil      time.Time
	late           notify.Change // of hosts, while workers are held
	// fresh are the slots that were told their place in this world and have not begun to use it: if one asks again, it
	// has not got the answer.
	fresh    map[string]bool
	failures []Failure // of this world
	workers  map[string]worker
	lastID   int

	// blank says that the next world begins anew: no worker of the last one is in it, or still runs when it begins.
	blank bool
	pause time.Time // until when no world begins
	wonAt time.Time // when the job has succeeded, though others may go on until then; zero before

	usable   []horovod.Host
	deadline time.Time // of forming
	short    int       // the number of slots that people were last told of, in forming; -1 for none
	told     bool      // rank 0 is to be told of a change

	verdict Verdict
}

// Verdict is how an elastic job ended.
type Verdict struct {
	// Status is the exit status: that of the worker that failed first in the last world, or one of ours.
	Status int
	// Reason is a sentence, empty after a success.
	Reason string
	// Limit says that a limit of restarts allowed no further world.
	Limit bool
}

func newMachine(rules Rules, now time.Time) *machine {
	m := &machine{rules: rules, table: discovery.NewTable(rules.Cooldown), phase: forming, workers: map[string]worker{}, short: -1}
	m.deadline = now.Add(rules.Timeout)
	return m
}

// hosts takes the result of a discovery.
func (m *machine) hosts(found []horovod.Host, now time.Time) []effect {
	m.table.Found(found)
	return m.tick(now)
}

// tick is called now and then: cool-downs and time-outs end.
func (m *machine) tick(now time.Time) []effect {
	var change notify.Change
	m.usable, change = m.table.Look(now)
	if !m.wonAt.IsZero() {
		return m.outlast(now)
	}
	switch m.phase {
	case forming:
		return m.form(now)
	case running:
		m.late |= change
		if len(m.held) > 0 {
			if now.Before(m.holdUntil) {
				return nil
			}
			return m.letGo()
		}
		return m.push()
	case over:
	}
	return nil
}

// push tells rank 0 of a change that makes the next world different from the current one. The workers of a world that
// was only told of removed hosts would not synchronize their state in the next one, and wait for ever for a new worker
// that does: hosts may still come until the workers ask for their places (horovod/horovod#3494). So removals are told
// as mixed, which costs one synchronization.
func (m *machine) push() []effect {
	change := m.late
	m.late = notify.NoChange
	next, err := horovod.Allocate(m.usable, m.rules.MinNP, m.rules.MaxNP)
	if err == nil && slices.Equal(next, m.order) {
		if m.told {
			m.told = false
			return []effect{untell{}}
		}
		return nil
	}
	if change == notify.NoChange {
		return nil
	}
	if change&notify.Removed != 0 || err != nil {
		change = notify.Mixed
	}
	m.told = true
	return []effect{tell{m.order[0].Key(), change}}
}

// ask is a worker's request for its place in the next world. It returns the answer, or "" for a worker that has to
// wait.
func (m *machine) ask(key string, now time.Time) (string, []effect) {
	slot, ours := m.plan[key]
	switch {
	case m.phase == over, !m.wonAt.IsZero(), !ours, m.table.Bad(slot.Host, now), m.workers[key].leaving:
		return horovod.NoPlace, nil
	case m.phase == running && m.fresh[key]:
		return slot.Place(), nil
	case m.states[key] == ready, m.held[key]:
		return "", nil // again, after its connection broke
	case m.phase == forming || m.states[key] != "":
		return horovod.NoPlace, nil // its end was seen already
	}
	m.states[key] = ready
	return "", m.decide(now)
}

// seen says that a worker has begun to use its place.
func (m *machine) seen(rank int) []effect {
	if rank < 0 || rank >= len(m.order) {
		return nil
	}
	key := m.order[rank].Key()
	delete(m.fresh, key)
	delete(m.starting, key)
	if len(m.starting) > 0 {
		return nil
	}
	return m.letGo()
}

// letGo gives the workers that stay their places.
func (m *machine) letGo() []effect {
	if len(m.held) == 0 {
		return nil
	}
	var effects []effect
	for _, slot := range m.order {
		key := slot.Key()
		if m.held[key] {
			m.fresh[key] = true
			effects = append(effects, release{key, slot.Place()})
		}
		m.begins(key)
	}
	clear(m.held)
	clear(m.starting)
	return append(effects, m.push()...)
}

// begins notes that the world of a worker has begun.
func (m *machine) begins(key string) {
	if w, runs := m.workers[key]; runs && m.states[key] == "" {
		w.begun = true
		m.workers[key] = w
	}
}

// giveUp ends a world that has not begun because a worker of it ended: those that are held are ready for another one,
// and those that are starting would wait for them in vain.
func (m *machine) giveUp() []effect {
	var effects []effect
	for key := range m.held {
		if m.states[key] == "" {
			m.states[key] = ready
		}
	}
	for _, slot := range m.order {
		if key := slot.Key(); m.starting[key] && m.states[key] == "" {
			m.states[key] = dropped
			effects = append(effects, m.leave(key, false)...)
		}
	}
	clear(m.held)
	clear(m.starting)
	for _, slot := range m.order {
		if key := slot.Key(); m.states[key] == "" { // it had begun
			m.states[key] = dropped
			effects = append(effects, m.leave(key, false)...)
		}
	}
	return effects
}

// ended says that process id of a slot has ended. lost says why it has not done so by itself, empty where
// it has.
func (m *machine) ended(key string, id, status int, lost string, now time.Time) []effect {
	w := m.workers[key]
	if w.id != id {
		return nil // another has its place by now
	}
	delete(m.workers, key)
	if m.blank && m.phase == forming {
		return m.tick(now) // which has waited for it
	}
	slot, ours := m.plan[key]
	if w.leaving || !ours || m.phase == over || m.states[key] == success || m.states[key] == failure {
		return nil
	}
	if status == 0 {
		m.states[key] = success
	} else {
		m.states[key] = failure
		m.failures = append(m.failures, Failure{slot.Host, slot.LocalRank, slot.Rank, status, lost})
	}
	if !m.wonAt.IsZero() {
		return m.outlast(now)
	}
	switch r := m.judge(slot, status, lost, now); {
	case r.Over && r.Success && m.phase == running:
		m.wonAt = now.Add(r.Linger)
		effects := m.turnAway()
		return append(effects, m.outlast(now)...)
	case r.Over && r.Success:
		return m.finish(Verdict{})
	case r.Over:
		return m.finish(m.defeat(r))
	case r.Anew && (status == 0 || m.rules.Scope == ScopeWorld):
		m.pause = now.Add(r.Delay)
		return m.anew(now)
	case r.Anew && m.rules.Scope == ScopeProcess:
		m.pause = now.Add(r.Delay)
	}
	if m.phase == running {
		var effects []effect
		if len(m.held) > 0 {
			effects = m.giveUp()
		}
		return append(effects, m.decide(now)...)
	}
	// It had asked for its place in the next world, which waits for slots.
	if status == 0 {
		return m.succeed(now)
	}
	effects := m.exclude(now)
	if m.phase == forming {
		effects = append(effects, m.tick(now)...)
	}
	return effects
}

// judge asks what the end of a worker means beside Horovod's rules.
func (m *machine) judge(slot horovod.Slot, status int, lost string, now time.Time) Ruling {
	switch {
	case m.rules.Judge == nil:
		return Ruling{}
	case lost != "":
		return m.rules.Judge.Lost(now, slot.Rank, status)
	}
	return m.rules.Judge.Exited(now, slot.Rank, status)
}

// defeat is the verdict of a job that a ruling has ended.
func (m *machine) defeat(r Ruling) Verdict {
	v := Verdict{Status: r.Status, Reason: r.Why, Limit: r.Limit}
	for _, f := range m.failures {
		if f.Rank == r.Rank {
			v.Reason = f.String() + "; " + r.Why
		}
	}
	return v
}

// outlast ends a job that has succeeded, when the workers that may go on have ended, or had their time.
func (m *machine) outlast(now time.Time) []effect {
	if m.phase != over && (!now.Before(m.wonAt) || len(m.workers) == 0) {
		return m.finish(Verdict{})
	}
	return nil
}

// succeed ends a world that has succeeded by Horovod's rules.
func (m *machine) succeed(now time.Time) []effect {
	if m.rules.Judge != nil {
		if r := m.rules.Judge.Ended(now); r.Anew {
			m.pause = now.Add(r.Delay)
			return m.anew(now)
		}
	}
	return m.finish(m.judged(""))
}

// anew ends the world, and the next one begins with workers that have nothing of it.
func (m *machine) anew(now time.Time) []effect {
	effects := m.wipe(now)
	return append(effects, m.next(now)...)
}

// wipe ends all workers. The next world begins when none of them runs any more.
func (m *machine) wipe(now time.Time) []effect {
	var effects []effect
	for _, f := range m.failures {
		if f.Lost != "" && !m.table.Bad(f.Host, now) {
			effects = append(effects, blacklist{f.Host, m.table.Blacklist(f.Host, now)})
		}
	}
	effects = append(effects, m.turnAway()...)
	m.blank = true
	return append(effects, m.stopAll()...)
}

// turnAway gives all who have asked for their places no place.
func (m *machine) turnAway() []effect {
	var effects []effect
	for _, slot := range m.order {
		if key := slot.Key(); m.waits(key) || m.held[key] {
			effects = append(effects, release{key, horovod.NoPlace})
			m.states[key] = dropped
		}
	}
	clear(m.held)
	clear(m.starting)
	return effects
}

// judged is the verdict of a job that ends in this world: the first failure, if there was one. why says what ended it,
// if not only that.
func (m *machine) judged(why string) Verdict {
	if len(m.failures) == 0 {
		return Verdict{Reason: why}
	}
	v := Verdict{Status: m.failures[0].Status, Reason: m.failures[0].String()}
	if n := len(m.failures) - 1; n > 0 {
		v.Reason += fmt.Sprintf(", and %d more failed", n)
	}
	if why != "" {
		v.Reason += "; " + why
	}
	return v
}

// stopAll ends all processes of a job that is over, whatever they may do by the rules.
func (m *machine) stopAll() []effect {
	var effects []effect
	for _, key := range slices.Sorted(maps.Keys(m.workers)) {
		effects = append(effects, m.leave(key, false)...)
	}
	return effects
}

// finish ends the job: all who wait get no place, all processes are ended, or, by the rules, waited for. What they end
// with is not counted.
func (m *machine) finish(v Verdict) []effect {
	if m.phase == over {
		return nil
	}
	m.phase, m.verdict = over, v
	var effects []effect
	if m.told {
		m.told = false
		effects = append(effects, untell{})
	}
	effects = append(effects, m.turnAway()...)
	if m.rules.Wait && len(m.workers) > 0 {
		return append(effects, outlasting{len(m.workers)})
	}
	return append(effects, m.stopAll()...)
}

// done reports whether the job is over and nothing of it runs.
func (m *machine) done() bool { return m.phase == over && len(m.workers) == 0 }

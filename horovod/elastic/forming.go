package elastic

import (
	"fmt"
	"strings"
	"time"

	"muster/horovod"
	"muster/horovod/notify"
	"muster/internal/errhint"
)

// next lets the next world begin, as far as --reset-limit allows it.
func (m *machine) next(now time.Time) []effect {
	if m.rules.ResetLimit >= 0 && m.resets >= m.rules.ResetLimit {
		v := m.judged(fmt.Sprintf("the number of resets has reached the limit, %d (--reset-limit)", m.rules.ResetLimit))
		if v.Status == errhint.OK {
			v.Status = errhint.DoNotRetry
		}
		return m.finish(v)
	}
	m.resets++
	m.phase, m.deadline, m.short = forming, now.Add(m.rules.Timeout), -1
	if now.Before(m.pause) {
		m.deadline = m.pause.Add(m.rules.Timeout)
	}
	var effects []effect
	if m.told {
		m.told = false
		effects = append(effects, untell{})
	}
	return append(effects, m.tick(now)...)
}

// decide ends the current world when every worker of it has a state.
func (m *machine) decide(now time.Time) []effect {
	if len(m.states) < len(m.plan) {
		return nil
	}
	count := map[state]int{}
	for _, s := range m.states {
		count[s]++
	}
	switch {
	case count[success] > 0:
		return m.succeed(now)
	case count[failure] == len(m.plan) && m.rules.Scope != ScopeHost:
		return m.anew(now)
	case count[failure] == len(m.plan):
		return m.finish(m.judged("all workers failed"))
	}
	if m.rules.Judge != nil {
		switch r := m.rules.Judge.Next(now); {
		case r.Over:
			return m.finish(m.defeat(r))
		case r.Anew && m.rules.Scope == ScopeWorld:
			m.pause = now.Add(r.Delay)
			return m.anew(now)
		case r.Anew && m.rules.Scope == ScopeProcess:
			m.pause = now.Add(r.Delay)
		}
	}
	effects := m.exclude(now)
	if m.phase == over {
		return effects
	}
	return append(effects, m.next(now)...)
}

// exclude blacklists the hosts of failed workers, in ScopeProcess only those that were lost, and ends all other workers
// there. Without a host left the job is over.
func (m *machine) exclude(now time.Time) []effect {
	var effects []effect
	for _, f := range m.failures {
		if m.rules.Scope == ScopeHost || f.Lost != "" {
			if !m.table.Bad(f.Host, now) {
				effects = append(effects, blacklist{f.Host, m.table.Blacklist(f.Host, now)})
			}
		}
	}
	left := 0
	for _, slot := range m.order {
		if !m.table.Bad(slot.Host, now) {
			left++
			continue
		}
		if m.waits(slot.Key()) {
			effects = append(effects, release{slot.Key(), horovod.NoPlace})
		}
		effects = append(effects, m.leave(slot.Key(), false)...)
	}
	if left == 0 {
		return append(effects, m.finish(m.judged("workers failed on every host"))...)
	}
	return effects
}

// leave ends the worker of a slot.
func (m *machine) leave(key string, told bool) []effect {
	w, runs := m.workers[key]
	if !runs || w.leaving {
		return nil
	}
	w.leaving = true
	m.workers[key] = w
	return []effect{stopWorker{w.id, told}}
}

// form begins the next world if there are slots enough.
func (m *machine) form(now time.Time) []effect {
	if now.Before(m.pause) || m.blank && len(m.workers) > 0 {
		return nil
	}
	need := m.rules.MinNP
	if m.generation == 0 {
		need = m.rules.NP
	}
	if m.generation > 0 {
		// A host that was away for a moment has lost its place at the front, but not its workers.
		m.usable = m.table.First(func(host string) bool { return m.survives(horovod.Key(host, 0)) })
	}
	have := horovod.Total(m.usable)
	order, err := horovod.Allocate(m.usable, need, m.rules.MaxNP)
	if err != nil {
		if !now.Before(m.deadline) {
			v := m.judged(fmt.Sprintf("there were only %d slots of the %d needed within %v (--elastic-timeout)", have, need,
				m.rules.Timeout))
			if v.Status == errhint.OK {
				v.Status = errhint.TryAgain
			}
			return m.finish(v)
		}
		if m.short == have {
			return nil
		}
		m.short = have
		return []effect{waiting{have, need}}
	}
	// All take their state from rank 0: a new worker there would have the others begin anew.
	if m.generation > 0 && !m.blank && !m.survives(order[0].Key()) {
		if m.rules.Scope == ScopeProcess {
			effects := m.wipe(now)
			return append(effects, m.form(now)...)
		}
		v := m.judged("no worker of the last world is left that could hand its state on")
		if v.Status == errhint.OK {
			v.Status = errhint.TryAgain
		}
		return m.finish(v)
	}
	var waited []horovod.Slot
	stays := map[string]bool{}
	for _, slot := range m.order {
		if key := slot.Key(); m.waits(key) {
			waited = append(waited, slot)
			stays[key] = m.survives(key)
		}
	}
	m.generation++
	m.phase, m.order, m.failures = running, order, nil
	m.plan, m.states, m.fresh = map[string]horovod.Slot{}, map[string]state{}, map[string]bool{}
	m.held, m.starting, m.holdUntil, m.late = map[string]bool{}, map[string]bool{}, now.Add(m.rules.Timeout), notify.NoChange
	for _, slot := range order {
		m.plan[slot.Key()] = slot
	}
	if m.rules.Judge != nil {
		m.rules.Judge.World(now, len(order))
	}
	effects := []effect{beginWorld{m.generation, order}}
	for _, slot := range waited {
		key := slot.Key()
		if _, planned := m.plan[key]; planned && stays[key] {
			m.held[key] = true
			continue
		}
		effects = append(effects, release{key, horovod.NoPlace})
		effects = append(effects, m.leave(key, true)...)
	}
	for _, slot := range order {
		key := slot.Key()
		if m.held[key] {
			continue
		}
		m.starting[key] = true
		m.lastID++
		effects = append(effects, startWorker{slot, m.lastID, m.workers[key].id})
		m.workers[key] = worker{id: m.lastID, begun: m.generation == 1 || m.blank}
	}
	m.blank = false
	if len(m.starting) == 0 {
		return append(effects, m.letGo()...)
	}
	return effects
}

// waits reports whether the worker of a slot of the last world has asked for its place in the next one.
func (m *machine) waits(key string) bool {
	w, runs := m.workers[key]
	return m.states[key] == ready && runs && !w.leaving
}

// survives reports whether it does and has the job's state, so that it can go on.
func (m *machine) survives(key string) bool {
	return m.waits(key) && m.workers[key].begun
}

// shape shows a world as its hosts with their workers, for logs: a:2 b:1.
func shape(slots []horovod.Slot) string {
	var parts []string
	for _, s := range slots {
		if s.LocalRank == 0 {
			parts = append(parts, fmt.Sprintf("%s:%d", s.Host, s.LocalSize))
		}
	}
	return strings.Join(parts, " ")
}

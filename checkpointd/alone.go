package checkpointd

import (
	"cmp"

	"muster/checkpointd/planner"
)

// A job of one node is led by the same planner as one of several. The node calls its leader directly: there is no
// board and no connection, and what follows from a report is there when notifyLocked returns. A directory is opened
// before its first set is made (see opening), and what a killed agent has left is adopted then.

// leadAlone has a node that is alone lead itself, from its first round on.
func (t *participant) leadAlone() {
	t.alone, t.leading = true, newLeading(t.s)
	t.leading.planner.BeginRound(1, t.s.round<<eraShift, "")
}

// nextAloneLocked begins the next round of a node that is alone: its workers have ended, and why stands in the log. The
// newest complete step is written behind those that come next.
func (t *participant) nextAloneLocked(why string) {
	s, l := t.s, t.leading
	if s.closed {
		return
	}
	s.round++
	for _, st := range s.allSetsLocked() {
		st.beginRound()
	}
	t.report = planner.Report{} // the leader forgets the reports of a round
	l.mu.Lock()
	l.planner.BeginRound(1, s.round<<eraShift, cmp.Or(why, "the workers have ended"))
	l.mu.Unlock()
	s.notifyLocked()
	for _, st := range s.sets {
		s.compareAheadLocked(st)
	}
}

// consultLocked has the leader of a node that is alone hear the newest report, and does what its view asks for. Where
// that changes what there is to report the leader hears that, too.
func (t *participant) consultLocked() {
	if t.consulting || !t.led() {
		return // whoever consults it has it hear the newest
	}
	t.consulting = true
	defer func() { t.consulting = false }()
	for again := true; again; again = t.unsent {
		t.unsent = false
		v := t.leading.consult(t.report)
		t.seen, t.drain = v.Seen, v.Drained
		for i := range v.Sets {
			t.s.carryOutLocked(&v.Sets[i])
		}
		t.reportLocked()
	}
	t.s.wakeLocked()
}

// consult takes the report of the only node, and returns the view that follows. The caller has Service.mu.
func (l *leading) consult(r planner.Report) planner.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.planner.Report(0, &r)
	for actions := l.planner.Actions(); len(actions) > 0; actions = l.planner.Actions() {
		for _, a := range actions {
			if a.Kind != planner.Open {
				l.acts.Go(func() { l.act(a) })
				continue
			}
			l.planner.Opened(a.Key, l.s.findSetLocked(a.Key).head, nil) // a worker that has named it had it opened
		}
	}
	return l.planner.View(0)
}

// removeParts removes what was written of steps that are not committed any more. No other node has written a part.
func (s *Service) removeParts() {
	s.mu.Lock()
	var stages []spot
	for _, st := range s.allSetsLocked() {
		if st.attempt != "" {
			stages = append(stages, (&commitment{dir: st.dir, attempt: st.attempt}).stage())
		}
	}
	s.mu.Unlock()
	for _, stage := range stages {
		_ = s.cfg.disk.RemoveAll(stage) // whoever opens the directory next removes it
	}
}

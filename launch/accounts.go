package launch

import (
	"maps"
	"time"

	"muster/launch/accounting"
	"muster/launch/job"
	"muster/launch/progress"
	"muster/launch/report"
)

// accounts are what a node knows of the time of its job, under the mutex of its Steering.
type accounts struct {
	ledger accounting.Ledger
	// group counts the groups of workers; past are the marks of those of the last one that have ended.
	group    int
	past     accounting.Marks
	restarts map[job.Reason]int
	// checking is when the check began that goes on, zero for none.
	checking   time.Time
	rounds     report.Rounds
	spans      spans
	rendezvous report.Durations
	logBytes   int64 // of workers that others have followed
	checks     report.Durations
}

// causeOf says what time goes to in a phase; false for phases in which that follows from something else.
func causeOf(p report.Phase) (accounting.Cause, bool) {
	switch p {
	case report.PhaseChecking:
		return accounting.Check, true
	case report.PhaseRestarting, report.PhaseResuming:
		return accounting.Restart, true
	case report.PhasePausing, report.PhasePaused:
		return accounting.Pause, true
	case report.PhaseTerminating:
		return accounting.Stop, true
	default:
		return 0, false
	}
}

// accountLocked takes in that the job stands in another way.
func (s *Steering) accountLocked(d *report.Status) {
	b, now, before := &s.accounts, time.Now(), &s.status
	b.rounds.Take(d, now)
	b.spans.take(d, now)
	b.ledger.Mark(s.marksLocked())
	if !b.checking.IsZero() {
		b.checks.Add(now.Sub(b.checking))
		b.checking = time.Time{}
	}
	restarts := d.Phase == report.PhaseRestarting && before.Phase != report.PhaseRestarting ||
		d.Phase == report.PhaseRunning && before.Phase == report.PhaseRunning && d.RestartCount > before.RestartCount
	if restarts && d.Reason != "" {
		if b.restarts == nil {
			b.restarts = map[job.Reason]int{}
		}
		b.restarts[d.Reason]++
	}
	cause, simple := causeOf(d.Phase)
	switch {
	case d.EndTime != nil:
		b.ledger.End(now)
	case simple:
		b.ledger.Enter(cause, now)
		if cause == accounting.Check {
			b.checking = now
		}
	case d.Phase == report.PhaseCreating:
		b.group++
		b.past = accounting.Marks{}
		b.ledger.Train(now)
	case d.Phase == report.PhaseRunning:
		b.ledger.Started(now)
	}
}

// meets says that the nodes meet, until the returned function is called.
func (s *Steering) meets() (met func()) {
	if s == nil {
		return func() {}
	}
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accounts.ledger.Mark(s.marksLocked())
	s.accounts.ledger.Enter(accounting.Rendezvous, began)
	s.accounts.spans.enter("rendezvous", began, &s.status)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.accounts.rendezvous.Add(time.Since(began))
	}
}

// marksOf are what a worker's program has told.
func marksOf(f *progress.File) accounting.Marks {
	r, told := f.Read()
	if !told {
		return accounting.Marks{}
	}
	return accounting.Marks{
		First: r.First, Passed: r.Passed, Stalled: r.Stalled, StalledFirst: r.StalledFirst, StalledPassed: r.StalledPassed,
	}
}

// marksLocked are the marks of the group of workers that was started last.
func (s *Steering) marksLocked() accounting.Marks {
	m := s.accounts.past
	if !s.accounts.ledger.Training() {
		return m
	}
	for i := range s.places {
		if p := &s.places[i]; p.worker != nil && !p.ended && p.group == s.accounts.group {
			m = m.And(marksOf(p.worker.progress))
		}
	}
	return m
}

// accounting is what time has gone to until now.
func (s *Steering) accounting() *report.Accounting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accountingLocked()
}

func (s *Steering) accountingLocked() *report.Accounting {
	s.accounts.ledger.Mark(s.marksLocked())
	account := s.accounts.ledger.Account(time.Now())
	a := &report.Accounting{
		WallSeconds: account.Wall().Seconds(), Goodput: account.Goodput(), Seconds: map[string]float64{},
		Restarts: maps.Clone(s.accounts.restarts),
	}
	for _, c := range accounting.Causes() {
		a.Seconds[c.String()] = account[c].Seconds()
	}
	var m report.Measured
	for _, gather := range s.gather {
		gather(&m)
	}
	if w := m.Written; w.Count > 0 {
		a.Checkpoints = &report.WrittenParts{Parts: w.Count, Bytes: m.WrittenBytes, Seconds: w.Seconds}
	}
	return a
}

// Measured implements control.Measurer.
func (v served) Measured() report.Measured {
	s := v.s
	written := s.written()
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes := s.accounts.logBytes + written
	m := report.Measured{Rendezvous: s.accounts.rendezvous, Checks: s.accounts.checks, LogBytes: &bytes}
	for i := range s.places {
		w := s.places[i].worker
		if w == nil {
			continue
		}
		if r, told := w.progress.Read(); told {
			m.Ranks = append(m.Ranks, report.MeasuredRank{
				Rank: w.Rank, Buckets: r.Buckets[:], StepBounds: progress.Bounds(), StepSeconds: r.Sum,
				Stalls: r.Stalls, StallSeconds: r.Stalled.Seconds(),
			})
		}
	}
	for _, gather := range s.gather {
		gather(&m)
	}
	return m
}

// written is how much the workers that are in their places have written. It looks at files, and waits for their disk: nobody
// else does.
func (s *Steering) written() (bytes int64) {
	s.mu.Lock()
	workers := make([]*worker, 0, len(s.places))
	for i := range s.places {
		if w := s.places[i].worker; w != nil {
			workers = append(workers, w)
		}
	}
	s.mu.Unlock()
	for _, w := range workers {
		bytes += w.logs.Bytes()
	}
	return bytes
}

// writtenBefore is how much the worker has written that was in a place last.
func (s *Steering) writtenBefore(localRank int) int64 {
	s.mu.Lock()
	var before *worker
	if localRank < len(s.places) {
		before = s.places[localRank].worker
	}
	s.mu.Unlock()
	if before == nil {
		return 0
	}
	return before.logs.Bytes()
}

// gathers has a function add what somebody else of this node counts to its numbers, each time when they are asked for.
func (s *Steering) gathers(f func(*report.Measured)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather = append(s.gather, f)
}

// summarize tells of the job as a whole, now that it has ended: in its file where one is asked for, and in the log
// where it was long.
func (a *Agent) summarize() {
	d := a.Steering.Status()
	a.Steering.mu.Lock()
	sum := report.NewSummary(d, a.Steering.accounts.rounds)
	a.Steering.mu.Unlock()
	if text := sum.Text(); text != "" && d.GroupRank == 0 {
		a.Log.Info().Msg("the job has lasted " + text)
	}
	if path := a.Plan.Job.See.Summary; path != "" {
		if err := sum.WriteTo(path); err != nil {
			a.Log.Warn().Err(err).Msg("there is no summary of the job")
		}
	}
}

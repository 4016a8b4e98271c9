// Package accounting says what the time of a job went to, by causes that add up to all of it. It is pure: it knows no
// clock, and learns from its caller what has happened when.
package accounting

import "time"

// Cause is what time went to.
type Cause int

// The causes.
const (
	// Start is until the nodes begin to meet.
	Start Cause = iota
	// Rendezvous is the waiting for the nodes of a round.
	Rendezvous
	// Check is the examination of the nodes.
	Check
	// Import is from the start of workers until their first step is finished; of workers that tell no steps until they
	// have all been started.
	Import
	// Good is training.
	Good
	// Repeated are steps that had been done before, by workers that have failed since.
	Repeated
	// Checkpoint is the waiting of workers for their checkpoints.
	Checkpoint
	// Restart is from the decision that workers start again until the nodes meet, or the workers are started.
	Restart
	// Pause is while somebody has paused the job.
	Pause
	// Stop is from when the job is decided until it has ended.
	Stop

	causes = int(Stop) + 1
)

// Causes are all of them, in the order in which they are told.
func Causes() []Cause {
	return []Cause{Start, Rendezvous, Check, Import, Good, Repeated, Checkpoint, Restart, Pause, Stop}
}

// String is the name that metrics, files and people have for it.
func (c Cause) String() string {
	return [causes]string{
		"start", "rendezvous", "check", "import", "good", "repeated", "checkpoint", "restart", "pause", "stop",
	}[c]
}

// Marks are what the workers of a group have told. Of several workers the first one counts, as each waits for the
// others, and of their stalls the longest.
type Marks struct {
	// First and Passed are when the first step was finished, and the first one that had not been done before; zero:
	// none was.
	First, Passed time.Time
	// Stalled is how long checkpoints have kept the worker waiting, StalledFirst and StalledPassed how long until First
	// and Passed.
	Stalled, StalledFirst, StalledPassed time.Duration
}

// And are the marks of two workers.
func (m Marks) And(o Marks) Marks {
	if m.Stalled < o.Stalled {
		m.Stalled, m.StalledFirst, m.StalledPassed = o.Stalled, o.StalledFirst, o.StalledPassed
	}
	m.First, m.Passed = earlier(m.First, o.First), earlier(m.Passed, o.Passed)
	return m
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Account is what time went to.
type Account [causes]time.Duration

// Wall is all of it.
func (a Account) Wall() (sum time.Duration) {
	for _, d := range a {
		sum += d
	}
	return sum
}

// Goodput is the share of Good, 0 of no time.
func (a Account) Goodput() float64 {
	if wall := a.Wall(); wall > 0 {
		return float64(a[Good]) / float64(wall)
	}
	return 0
}

// Ledger keeps the account of one job, in the order of time. Times that go back count as the last one. The zero value
// is to be begun with Enter.
type Ledger struct {
	closed Account
	cause  Cause
	since  time.Time // zero: nothing has begun
	ended  bool
	// training says that a group of workers was started at since; all of them were at started, which is zero before.
	training bool
	started  time.Time
	marks    Marks
	tells    bool // workers of this job tell their steps
}

// Enter says that time goes to a cause from now on.
func (l *Ledger) Enter(c Cause, at time.Time) {
	at = l.settle(at)
	l.cause, l.since = c, at
}

// Train says that workers are being started. Until the next Enter or Train time goes to what their marks say.
func (l *Ledger) Train(at time.Time) {
	at = l.settle(at)
	l.training, l.started, l.marks, l.since, l.cause = true, time.Time{}, Marks{}, at, Import
}

// Started says that all workers were started.
func (l *Ledger) Started(at time.Time) {
	if l.training && l.started.IsZero() {
		l.started = at
	}
}

// Mark takes what the workers that train have told, each time all of it.
func (l *Ledger) Mark(m Marks) {
	if l.training {
		l.marks = m
		l.tells = l.tells || !m.First.IsZero()
	}
}

// Training reports whether marks are taken.
func (l *Ledger) Training() bool { return l.training && !l.ended }

// End says that the job has ended: what comes later counts no more.
func (l *Ledger) End(at time.Time) {
	l.settle(at)
	l.ended = true
}

// settle closes what has gone on until now.
func (l *Ledger) settle(at time.Time) time.Time {
	if l.ended {
		return l.since
	}
	if l.since.IsZero() {
		l.since = at
	}
	if at.Before(l.since) {
		at = l.since
	}
	l.closed = l.until(at)
	l.training, l.since = false, at
	return at
}

// Account is what time has gone to until now.
func (l *Ledger) Account(now time.Time) Account {
	if l.ended || l.since.IsZero() || now.Before(l.since) {
		return l.closed
	}
	return l.until(now)
}

func (l *Ledger) until(at time.Time) Account {
	a := l.closed
	if !l.training {
		a[l.cause] += at.Sub(l.since)
		return a
	}
	first, m := l.marks.First, l.marks
	switch {
	case first.IsZero() && l.tells:
		first = at // they have not come so far
	case first.IsZero() && l.started.IsZero():
		first = at
	case first.IsZero():
		first, m.Passed = l.started, l.started
	}
	first = within(first, l.since, at)
	a[Import] += first.Sub(l.since)
	left := at.Sub(first)
	stalled := clamp(m.Stalled-m.StalledFirst, left)
	again := left - stalled
	if !m.Passed.IsZero() {
		passed := within(m.Passed, first, at)
		again = clamp(passed.Sub(first)-max(0, m.StalledPassed-m.StalledFirst), left-stalled)
	}
	a[Checkpoint] += stalled
	a[Repeated] += again
	a[Good] += left - stalled - again
	return a
}

// within is the moment nearest to t between two others.
func within(t, least, most time.Time) time.Time {
	if t.Before(least) {
		return least
	}
	if t.After(most) {
		return most
	}
	return t
}

// clamp is the duration nearest to d between 0 and most.
func clamp(d, most time.Duration) time.Duration { return max(0, min(d, most)) }

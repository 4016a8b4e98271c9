package launch

import (
	"time"

	"muster/launch/report"
	"muster/launch/trace"
)

// spans tell a collector of the life of a job: one for the job, and under it one for each thing that its time went to.
// Under the mutex of its Steering.
type spans struct {
	exporter *trace.Exporter // nil: nobody hears of it
	job      trace.ID
	began    time.Time
	name     string // of what goes on; empty for nothing
	id       trace.ID
	since    time.Time
	spawning time.Time // when workers began to be started, zero where they have been
}

// spanOf is the name of what a phase is, empty where it is that of the phase before.
func spanOf(p report.Phase) string {
	switch p {
	case report.PhasePending:
		return "start"
	case report.PhaseChecking:
		return "check"
	case report.PhaseCreating:
		return "round"
	case report.PhaseRestarting, report.PhaseResuming:
		return "restart"
	case report.PhasePausing, report.PhasePaused:
		return "pause"
	case report.PhaseTerminating:
		return "stop"
	default:
		return ""
	}
}

// enter ends what went on, and begins something else.
func (t *spans) enter(name string, now time.Time, d *report.Status) {
	if t.exporter == nil || name == t.name && name != "round" {
		return
	}
	if t.name != "" {
		t.exporter.Add(trace.Span{
			Name: t.name, Begin: t.since, End: now, ID: t.id, Parent: t.job,
			Attributes: []trace.Attribute{
				{Key: "muster.round", Number: int64(d.Generation)},
				{Key: "muster.restarts", Number: int64(d.RestartCount)},
				{Key: "muster.world_size", Number: int64(d.WorldSize)},
				{Key: "muster.phase", Text: string(d.Phase)},
			},
		})
	}
	t.name, t.since, t.id, t.spawning = name, now, trace.NewID(), time.Time{}
}

// take takes in that the job stands in another way.
func (t *spans) take(d *report.Status, now time.Time) {
	if t.exporter == nil {
		return
	}
	if t.began.IsZero() {
		t.began, t.job = now, trace.NewID()
	}
	if name := spanOf(d.Phase); name != "" {
		t.enter(name, now, d)
	}
	switch {
	case d.Phase == report.PhaseCreating:
		t.spawning = now
	case d.Phase == report.PhaseRunning && !t.spawning.IsZero():
		t.exporter.Add(trace.Span{Name: "spawn", Begin: t.spawning, End: now, ID: trace.NewID(), Parent: t.id})
		t.spawning = time.Time{}
	case d.EndTime != nil:
		t.enter("", now, d)
		t.exporter.Add(trace.Span{
			Name: "job", Begin: t.began, End: now, ID: t.job, Failed: d.Phase != report.PhaseSucceeded, Message: d.Message,
			Attributes: []trace.Attribute{{Key: "muster.reason", Text: string(d.Reason)}},
		})
	}
}

// openSpans begins to tell a collector of the job, where the environment names one.
func (s *Steering) openSpans() {
	run := ""
	if s.plan.RunID != "none" {
		run = s.plan.RunID
	}
	c, found, err := trace.FromEnviron(s.plan.Job.Environ, run, s.log)
	if err != nil {
		s.log.Warn().Err(err).Msg("no collector hears of the job")
	}
	if !found || err != nil {
		return
	}
	c.Resource = []trace.Attribute{{Key: "muster.run_id", Text: s.plan.RunID}, {Key: "host.name", Text: s.plan.Hostname}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accounts.spans.exporter = trace.Open(c)
	s.accounts.spans.take(&s.status, time.Now())
}

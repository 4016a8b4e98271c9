package report

import (
	"cmp"
	"slices"
	"time"

	"muster/launch/job"
)

// Ended is a status that was the last to be heard of a job, when all of it has ended: how, is known by muster's exit
// status alone. What a node itself has said of the end counts. Nobody knows how a worker of a failed job ended that
// still ran.
func (d *Status) Ended(o Outcome, at time.Time) Status {
	c := d.clone()
	if d.EndTime != nil && d.ExitStatus != nil && *d.ExitStatus == o.Status {
		return c
	}
	if d.Phase == PhaseTerminating && o.Reason != job.ReasonSucceeded {
		o.Reason, o.Message = cmp.Or(d.Reason, o.Reason), cmp.Or(d.Message, o.Message)
	}
	workers := PhaseUnknown
	c.Phase = PhaseFailed
	switch o.Reason {
	case job.ReasonSucceeded:
		c.Phase, workers = PhaseSucceeded, PhaseSucceeded
	case job.ReasonDeadline:
		c.Phase, workers = PhaseTimeout, PhaseStopped
	case job.ReasonStopped:
		workers = PhaseStopped
	default: // some have failed, and some were stopped
	}
	c.settle(workers)
	s := StatusFile{doc: c, cfg: StatusConfig{Now: func() time.Time { return at }}}
	s.doc.ExitStatus, s.doc.EndTime = &o.Status, &at
	s.doc.Reason, s.doc.Message, s.doc.Hint = o.Reason, o.Message, o.Hint
	s.condition(conditionRunning, false, o.Reason, o.Message)
	if o.Reason == job.ReasonSucceeded {
		s.condition(conditionCompleted, true, o.Reason, o.Message)
	} else {
		s.condition(conditionFailed, true, o.Reason, o.Message)
	}
	return s.doc
}

// settle has all that is not known to have ended end in a phase: Succeeded, Stopped or Unknown.
func (d *Status) settle(workers Phase) {
	for i := range d.Tasks {
		if d.Tasks[i].Phase.lives() {
			d.Tasks[i].Phase = workers
		}
	}
	for i := range d.Ranks {
		if d.Ranks[i].Phase.lives() {
			d.Ranks[i].Phase = workers
		}
	}
	d.Counts.settle(workers)
}

// settle counts what has not ended as that.
func (c *Counts) settle(workers Phase) {
	n := c.Pending + c.Creating + c.Running + c.Terminating
	c.Pending, c.Creating, c.Running, c.Terminating = 0, 0, 0, 0
	switch workers {
	case PhaseSucceeded:
		c.Succeeded += n
	case PhaseStopped:
		c.Stopped += n
	default:
		c.Unknown += n
	}
}

// Lost is a status from which the musters of some nodes have gone without a word: nobody knows of their workers that ran.
func (d *Status) Lost(node func(name string) bool) Status {
	c := d.clone()
	for i := range c.Tasks {
		if t := &c.Tasks[i]; node(t.Node) && t.Phase.lives() {
			t.Phase = PhaseUnknown
		}
	}
	live := &c.Counts
	for i := range c.Ranks {
		r := &c.Ranks[i]
		if !node(r.Node) || !r.Phase.lives() {
			continue
		}
		of := &live.Running
		if r.Phase == PhaseTerminating {
			of = &live.Terminating
		}
		if *of > 0 { // they are as of the last change of phase
			*of--
			live.Unknown++
		}
		r.Phase, r.CPUSeconds, r.ResidentBytes, r.UsageTime, r.Devices, r.DevicesTime = PhaseUnknown, nil, nil, nil, nil, nil
	}
	return c
}

// Ending is the last status of a job that was told to end since, and why: its workers that ran are being stopped. One
// that has ended stays as it is, but for one that has been stopped: its nodes do not know why they were told to end.
func (d *Status) Ending(reason job.Reason, why string) Status {
	c := d.clone()
	if c.EndTime != nil && c.Reason != job.ReasonStopped {
		return c
	}
	c.EndTime, c.ExitStatus = nil, nil
	c.Conditions = slices.DeleteFunc(c.Conditions, func(c Condition) bool { return c.Type == conditionFailed })
	c.Phase, c.Reason, c.Message, c.Hint = PhaseTerminating, reason, why, ""
	for i := range c.Tasks {
		if t := &c.Tasks[i]; t.Phase.lives() {
			t.Phase = PhaseTerminating
		}
	}
	for i := range c.Ranks {
		if r := &c.Ranks[i]; r.Phase == PhaseRunning {
			r.Phase = PhaseTerminating
		}
	}
	n := &c.Counts
	n.Terminating, n.Running = n.Terminating+n.Running, 0
	return c
}

// lives reports whether a worker in this phase has not ended.
func (p Phase) lives() bool {
	return !slices.Contains([]Phase{PhaseSucceeded, PhaseFailed, PhaseTimeout, PhaseStopped, PhaseUnknown}, p)
}

package launch

import (
	"time"

	"muster/internal/proc"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// started takes in a process that runs in its place.
func (s *Steering) started(w *worker) {
	if s == nil {
		return
	}
	out, err := w.logs.Paths()
	written := s.writtenBefore(w.LocalRank)
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.places) <= w.LocalRank {
		s.places = append(s.places, workerPlace{})
	}
	p := &s.places[w.LocalRank]
	if p.worker != nil {
		p.restarts++
		s.accounts.logBytes += written
	}
	p.worker, p.ended, p.group = w, false, s.accounts.group
	if out != "" || err != "" {
		p.logs = append([]control.LogFiles{{Began: time.Now().UTC(), Stdout: out, Stderr: err}}, p.logs...)
		p.logs = p.logs[:min(len(p.logs), mostLogs)]
	}
	s.events.Add(s.workerEvent(control.WorkerStarted, w))
}

// ended takes in that the process of a worker has ended; stopped says that muster had begun to end it.
func (s *Steering) ended(w *worker, stopped bool) {
	if s == nil {
		return
	}
	e := w.proc.Exit()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.places[w.LocalRank]
	if p.worker != w {
		return
	}
	w.progress.Close()
	s.done.take(w.progress)
	if p.group == s.accounts.group {
		s.accounts.past = s.accounts.past.And(marksOf(w.progress))
	}
	p.ended, p.last = true, &report.RankExit{PID: w.proc.PID(), ExitCode: e.Status(), Stopped: stopped, Time: moment(e.Ended)}
	if e.Signal != 0 {
		p.last.Signal = proc.SignalName(e.Signal)
	}
	event, code := s.workerEvent(control.WorkerExited, w), e.Status()
	event.Time, event.ExitCode, event.Signal, event.Stopped = e.Ended, &code, p.last.Signal, stopped
	s.events.Add(event)
}

// event is an event of this node, as it stands now.
func (s *Steering) event(kind control.EventType) control.Event {
	return control.Event{
		Type: kind, RunID: s.plan.RunID, Node: s.plan.Hostname, Generation: s.status.Generation, RestartCount: s.status.RestartCount,
	}
}

// happened adds an event of the round that the node has, or has had last, as fill makes it.
func (s *Steering) happened(kind control.EventType, fill func(*control.Event)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.event(kind)
	fill(&e)
	s.events.Add(e)
}

// completed says that the nodes have met for a round.
func (s *Steering) completed(r rendezvous.Round, took time.Duration) {
	s.happened(control.RendezvousCompleted, func(e *control.Event) {
		e.Generation, e.RestartCount, e.Seconds = r.Number, r.Restarts, took.Seconds()
		e.Message = wording.Plural(r.WorldSize, "worker") + " on " + wording.Plural(r.GroupWorldSize, "node")
	})
}

// checked says how the check of a round's nodes has ended for this one.
func (s *Steering) checked(out CheckOutcome, d *policy.Decision, err error, took time.Duration) {
	kind := control.CheckPassed
	if d != nil || err != nil {
		kind = control.CheckFailed
	}
	s.happened(kind, func(e *control.Event) {
		e.Seconds = took.Seconds()
		switch {
		case err != nil:
			e.Message = err.Error()
		case d != nil:
			e.Reason, e.Message = d.Reason, d.Text
		default:
			e.Message = out.Message
		}
	})
	for _, gone := range out.Excluded {
		s.happened(control.NodeExcluded, func(e *control.Event) { e.Subject, e.Message = gone.Node, gone.Reason })
	}
}

// nodeChange is what a verdict says of a node, false where it says nothing of any.
func nodeChange(v rendezvous.Verdict) (control.EventType, bool) {
	kind, is := map[string]control.EventType{
		"NodeLost": control.NodeLost, "NodeReturned": control.NodeJoined, "ScaleUp": control.NodeJoined,
		string(job.ReasonNodeStopped): control.NodeLost, string(job.ReasonLeaseOver): control.NodeLost,
	}[v.Reason]
	return kind, is
}

// changedNodes says that a round ends because nodes came or went.
func (s *Steering) changedNodes(v rendezvous.Verdict) {
	kind, is := nodeChange(v)
	if !is {
		return
	}
	subject := v.Subject
	if reason := job.Reason(v.Reason); reason == job.ReasonNodeStopped || reason == job.ReasonLeaseOver { // it says so itself
		subject = v.Node
	}
	s.happened(kind, func(e *control.Event) { e.Subject, e.Reason, e.Message = subject, job.Reason(v.Reason), v.Message })
}

// otherNodes says which nodes have come or gone between two rounds, as far as the end of the first has not: before is nil
// for a node that was in none.
func (s *Steering) otherNodes(before *meeting, r rendezvous.Round) {
	tell := func(kind control.EventType, reason, node, message string) {
		s.happened(kind, func(e *control.Event) {
			e.Generation, e.RestartCount, e.Subject, e.Reason, e.Message = r.Number, r.Restarts, node, job.Reason(reason), message
		})
	}
	if before == nil {
		if r.Number > 0 {
			tell(control.NodeJoined, "", "", "this node has joined the job, which ran without it")
		}
		return
	}
	if before.verdict == nil {
		return
	}
	kind, told := nodeChange(*before.verdict)
	more := r.GroupWorldSize - before.GroupWorldSize
	if told && kind == control.NodeLost {
		more++
	}
	switch reason := before.verdict.Reason; {
	case more > 0 && kind != control.NodeJoined:
		tell(control.NodeJoined, reason, "",
			wording.Plural(more, "node")+" joined: "+wording.Plural(r.GroupWorldSize, "node")+" take part now")
	case more < 0 && (reason == "StoreLost" || reason == "HostStopped" || reason == "CoordinatorAnew"):
		who := wording.Plural(-more, "node") + " did not come back"
		if r.HostLost != "" && more == -1 {
			who = "it did not come back"
		} else if r.HostLost != "" {
			who += ", " + r.HostLost + " among them"
		}
		tell(control.NodeLost, reason, r.HostLost, who+": "+before.verdict.Message)
	}
}

// committed says that a step of a checkpoint has got its name on disk.
func (s *Steering) committed(step int64, dir string, took time.Duration) {
	s.mu.Lock()
	s.savedMost = greater(s.savedMost, step)
	s.mu.Unlock()
	s.happened(control.CheckpointCommitted, func(e *control.Event) { e.Step, e.Message, e.Seconds = &step, dir, took.Seconds() })
}

// saved says that all ranks have saved a step of a checkpoint to memory.
func (s *Steering) saved(step int64, dir string, at time.Time) {
	s.happened(control.CheckpointSaved, func(e *control.Event) { e.Time, e.Step, e.Message = at, &step, dir })
}

// workerEvent is something that has happened to a worker.
func (s *Steering) workerEvent(kind control.EventType, w *worker) control.Event {
	e, rank := s.event(kind), w.Rank
	e.Rank, e.PID = &rank, w.proc.PID()
	return e
}

// asked records that somebody has asked for something.
func (s *Steering) asked(r control.Request) {
	r.Log(&s.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events.Add(s.of(r.Event()))
}

// refused records that what somebody has asked for is not done.
func (s *Steering) refused(r control.Request, err error) {
	r.LogRefusal(&s.log, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events.Add(s.of(r.Refusal(err)))
}

// of is an event about a request as one of this node, as it stands now.
func (s *Steering) of(e control.Event) control.Event {
	own := s.event(e.Type)
	own.By, own.Subject, own.Message = e.By, e.Subject, e.Message
	return own
}

func moment(t time.Time) time.Time { return t.UTC().Round(time.Millisecond) }

package launch

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

const (
	// restartGather bounds the waiting for what other nodes say about the failure that leads to a restart.
	restartGather = 2 * time.Second
	// endGather is how much longer than the workers' grace the waiting for it takes at the end of a job.
	endGather = 5 * time.Second
)

// endRound stops what is left of a group that is to be started again, and waits until it may be. It returns d, or what
// was decided meanwhile.
func (a *Agent) endRound(ctx context.Context, g *WorkerGroup, d policy.Decision) (policy.Decision, error) {
	l := a.Log.Warn().Str("reason", d.Cause()).Func(func(l *zerolog.Event) {
		if key := d.NodeKey(); key != "" && !a.meeting.alone() && (d.Node != "" || a.meeting.own || d.Verdict == policy.RestartNode) {
			l.Str(key, cmp.Or(d.Node, a.Plan.Hostname)) // on that node, too: all say the same
		}
	}).Int("restart_count", d.Restarts)
	switch {
	case d.Reason == job.ReasonPaused:
		l.Msg("pausing the job: somebody has asked for it")
	case d.Reason == job.ReasonScaled:
		l.Msg("meeting the others again: somebody has asked for another number of nodes")
	case d.Reason == job.ReasonRequested:
		l.Msg("restarting the workers: somebody has asked for it")
	case d.Verdict == policy.Reassemble:
		l.Msg("the nodes have changed: meeting the others again")
	case d.Verdict == policy.RestartNode && !a.meeting.alone():
		l.Int("max_restarts", a.Plan.Job.Restart.MaxRestarts).Dur("delay_ms", d.Delay).Msg("restarting the workers of this node alone")
	default:
		l.Int("max_restarts", a.Plan.Job.Restart.MaxRestarts).Dur("delay_ms", d.Delay).Msg("restarting the workers")
	}
	kernel := a.evidence()
	a.tellNext(d)
	if d.Delay == 0 && d.Reason != job.ReasonPaused {
		a.warm.LookAhead()
	}
	heard, err := a.stopHearing(context.WithoutCancel(ctx), g, a.ladder(syscall.SIGTERM), restartPatience)
	if err != nil {
		return d, err
	}
	a.roundOver(d)
	if heard.Final() {
		return heard, nil
	}
	if heard.Verdict != policy.CarryOn {
		d = heard
	}
	// Workers that failed by themselves before they were stopped may change the verdict: with a fatal code.
	for len(g.exited) > 0 {
		late := a.stepExit(ctx, <-g.exited)
		if late.Verdict == policy.CarryOn {
			continue
		}
		if late, err = a.settle(ctx, late); err != nil || late.Final() {
			return late, err
		}
		d = late
	}
	in := a.failureInput(g.exits(), kernel, -1)
	a.tellKilled(in.Exits)
	failures := in.Failures()
	for {
		timer := time.NewTimer(d.Delay)
		if d.Verdict == policy.Restart {
			a.tellPeers(ctx, failures)
			in.Elsewhere = a.gather(ctx, restartGather)
		}
		// Where the nodes have changed, that is why connections broke.
		if r := in.Report(failures); r != nil && (d.Verdict != policy.Reassemble || !r.Root.IsEcho()) {
			a.loop.remember(attemptOf(&r.Root))
			a.tell(r, d)
		}
		next, err := a.pause(ctx, d, timer.C)
		timer.Stop()
		if err != nil || next.Verdict != policy.Restart || next == d {
			return next, err
		}
		d = next // of all nodes, while this one was about to start its own workers again
	}
}

// stopHearing is stopGroup for the group of a round that others may still have something to say about: what that is,
// and its Grace ends the workers' own.
func (a *Agent) stopHearing(ctx context.Context, g *WorkerGroup, ladder proc.Ladder, patience time.Duration) (policy.Decision, error) {
	verdicts, rest := a.meeting.verdicts, a.meeting.rest
	if verdicts == nil {
		return policy.Decision{Rank: -1}, a.stopGroup(ctx, g, ladder, patience)
	}
	now, stopped := make(chan struct{}), make(chan struct{})
	var said []rendezvous.Verdict
	closed := false
	var wg sync.WaitGroup
	wg.Go(func() {
		var fence <-chan time.Time
		for {
			select {
			case v, ok := <-verdicts:
				if !ok {
					closed, verdicts = true, nil
					continue
				}
				said = append(said, v)
				if rest != nil {
					verdicts, rest = rest, nil
				}
				if v.Grace > 0 {
					fence = time.After(v.Grace)
				}
			case <-fence:
				close(now)
				return
			case <-a.Hurry:
				close(now)
				return
			case <-stopped:
				return
			}
		}
	})
	ladder.Now = now
	err := a.stopGroup(ctx, g, ladder, patience)
	close(stopped)
	wg.Wait()
	d := policy.Decision{Rank: -1}
	for _, v := range said {
		if heard := a.hear(ctx, v, true); heard.Verdict != policy.CarryOn {
			d = heard
		}
	}
	if closed {
		a.meeting.verdicts = nil
	}
	return d, err
}

// tell says in the log why a group is restarted, where that is more than the decision has said; the whole report is for
// the end.
func (a *Agent) tell(r *report.Report, d policy.Decision) {
	last := r.Root.LastWord()
	if r.Root.Rank == d.Rank && (r.Root.Hint == "" || r.Root.Plain()) && last == "" {
		return
	}
	l := a.Log.Warn().Int("rank", r.Root.Rank).Str("ended", r.Root.Ending())
	if !a.meeting.alone() {
		l = l.Str("node", r.Root.Host)
	}
	if r.Root.Hint != "" && !r.Root.Plain() {
		l = l.Str("hint", r.Root.Hint)
	}
	if h := r.HeldUp; h != nil {
		l = l.Str("held_up_by", h.Sentence)
	}
	if last != "" {
		l = l.Str("last_line", printable.Output(last))
	}
	l.Msg("root cause of the restart")
}

// pause waits until over delivers. It returns d, or what was decided meanwhile.
func (a *Agent) pause(ctx context.Context, d policy.Decision, over <-chan time.Time) (policy.Decision, error) {
	m := a.meeting
	if d.Verdict == policy.Reassemble {
		return d, nil
	}
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	for {
		select {
		case <-ctx.Done():
			return a.settle(ctx, a.policy.Step(a.stopEvent(ctx, policy.StopRequested)))
		case <-deadline:
			return a.settle(ctx, a.policy.Step(policy.Event{Kind: policy.DeadlineReached, At: time.Now()}))
		case v, ok := <-m.verdicts:
			heard := a.hear(ctx, v, ok)
			if heard.StartsAgain() {
				a.tellNext(heard)
			}
			if heard.Verdict != policy.CarryOn {
				return heard, nil
			}
		case <-a.Forward: // there is nobody to receive it
		case <-a.Steering.pausing:
			switch p := a.pauseNow(false); {
			case p.Verdict == policy.CarryOn:
			case d.Verdict == policy.Restart: // how the round ends is said: the next one pauses
				a.Steering.pokePause()
				return d, nil
			default:
				p, err := a.settle(ctx, p)
				if p.StartsAgain() {
					a.tellNext(p)
				}
				return p, err
			}
		case <-over:
			if ctx.Err() != nil { // both were ready
				return a.settle(ctx, a.policy.Step(a.stopEvent(ctx, policy.StopRequested)))
			}
			return d, nil
		}
	}
}

// conclude ends what is left of a decided job, as the clean policy says, and tells how it went.
func (a *Agent) conclude(ctx context.Context, g *WorkerGroup, d policy.Decision) (Result, error) {
	kernel := a.evidence()
	a.status.Terminating(why(d))
	signal := syscall.SIGTERM
	if d.Stops() || d.Leaves() {
		signal = a.stopSignal(ctx, d)
		level := zerolog.WarnLevel
		if a.StopTold {
			level = zerolog.DebugLevel
		}
		a.Log.WithLevel(level).Func(func(e *zerolog.Event) {
			if d.Text != "" || d.Verdict == policy.Fail { // all nodes say the same of the end of the job
				e.Str("reason", d.Cause())
			}
			select {
			case <-a.Hurry:
				e.Str("signal", proc.SignalName(syscall.SIGKILL))
			default:
				e.Str("signal", proc.SignalName(signal)).Dur("grace_ms", a.Plan.Job.Stop.Grace)
			}
		}).Msg("stopping the workers")
	}
	if err := a.clean(ctx, g, signal, d); err != nil {
		return Result{}, err
	}
	blamed := -1
	if d.Reason == job.ReasonFatal {
		blamed = d.Rank
	}
	in := a.failureInput(g.exits(), kernel, blamed)
	if d.Stops() || d.Reason == job.ReasonDeadline { // the report on a failure names them
		a.tellKilled(in.Exits)
	}
	o := report.Outcome{Reason: d.Reason, Exits: in.Exits}
	switch {
	case d.Stops():
		if v := a.meeting.verdict; v != nil && (v.Kind == rendezvous.Restart || v.Kind == rendezvous.Fail) {
			a.tellPeers(ctx, in.Failures()) // they wait for it
		}
	case d.Verdict == policy.Fail && d.Reason != job.ReasonDeadline:
		failures := in.Failures()
		a.tellPeers(ctx, failures)
		in.Elsewhere = a.gather(context.WithoutCancel(ctx), a.Plan.Job.Stop.Grace+endGather)
		if o.Report = in.Report(failures); o.Report != nil && d.Rank >= 0 {
			// The policy saw exits only, the report knows who was first.
			d.Rank = o.Report.Root.Rank
			a.loop.remember(attemptOf(&o.Report.Root))
			if !d.InLoop() {
				d.Status = o.Report.Status()
			}
		}
		d.Status = a.agree(ctx, max(d.Status, 1))
	case d.Verdict == policy.Succeed:
		o.Unsaved = a.drainCheckpoints(ctx)
		a.tellUntaken(g)
	default:
	}
	for _, w := range g.workers {
		a.events.Ended(w.named(), w.proc.Exit(), &g.round, g.restarts)
	}
	a.events.Agent("SUCCEEDED", &g.round, g.restarts, 0)
	return a.finish(ctx, o, d), nil
}

// tellUntaken names the faults of a rehearsal that no worker has obeyed, though all went well: nothing was rehearsed then.
func (a *Agent) tellUntaken(g *WorkerGroup) {
	if len(g.attempts) > 1 {
		return // who was started again in this round may have obeyed one before
	}
	for _, fault := range a.Plan.Untaken(g.round.Number, func(localRank, seconds int) bool {
		had := false
		for i, w := range g.workers {
			if localRank >= 0 && i != localRank {
				continue
			}
			e := w.proc.Exit()
			if w.stopped || e.Status() != 0 || e.Ended.Sub(e.Started) < time.Duration(seconds)*time.Second {
				return false
			}
			had = true
		}
		return had
	}) {
		a.Log.Warn().Str("fault", fault).Int("round", g.round.Number).Str("node", a.Plan.Hostname).
			Str("hint", "workers obey MUSTER_FAKE_FAULT themselves: examples/digits/faults.py does it in two lines of a script "+
				"(docs/fake-accelerator.md)").
			Msg("the rehearsal has a fault that no worker has obeyed: nothing failed")
	}
}

// tellKilled names the workers that did not end when muster asked them to.
func (a *Agent) tellKilled(exits []report.Exit) {
	var ranks, pids []int
	for _, e := range exits {
		if e.Stopped && e.Signal == syscall.SIGKILL {
			ranks, pids = append(ranks, e.Rank), append(pids, e.PID)
		}
	}
	if len(ranks) > 0 {
		a.Log.Warn().Ints("ranks", ranks).Ints("pids", pids).Str("node",
			a.Plan.Hostname).Msg("workers killed with SIGKILL, which had not ended in time")
	}
}

// finish writes how the job ended into the status file, and makes a Result of it.
func (a *Agent) finish(ctx context.Context, o report.Outcome, d policy.Decision) Result {
	var res Result
	var said, summary string                              // why, for people
	if d.Verdict == policy.StopForNow && a.unfit != nil { // it was about to leave anyway, and why says more
		d = *a.unfit
		o.Reason = d.Reason
	}
	o.Message = d.Message()
	compared := a.comparison(d)
	if compared != "" {
		o.Message += "; " + compared
		a.Log.Error().Str("reason", d.Message()).Str("compared", compared).Int("crash_loop", a.Plan.Job.Restart.CrashLoop).
			Msg("the job is in a crash loop: it is not started again")
	} else if o.Report != nil && d.Rank >= 0 {
		root := d // the status that the nodes agreed on may be another's
		root.Status = o.Report.Status()
		o.Message = root.Message()
		if h := o.Report.HeldUp; h != nil {
			o.Message = h.Sentence + "; " + o.Message
		}
	}
	switch {
	case d.Verdict == policy.Succeed:
		o.Status = errhint.OK
		if o.Unsaved != nil {
			o.Status, o.Reason, o.Hint = 1, job.ReasonNotSaved, errhint.Of(o.Unsaved)
			o.Message = "the workers have succeeded, but the last checkpoint is not on disk: " + o.Unsaved.Error()
			said = o.Message
		}
	case d.Reason == job.ReasonSurplus:
		o.Status, res.Left = errhint.OK, true
		a.Log.Info().Str("reason", o.Message).Msg("this node leaves the job")
	case d.Stops():
		o.Status = errhint.FromSignal(int(a.stopSignal(ctx, d)))
	case d.Reason == job.ReasonDeadline && a.Plan.Job.Restart.Deadline > 0:
		o.Status, said = errhint.Deadline, fmt.Sprintf("deadline of %v reached", a.Plan.Job.Restart.Deadline)
	default:
		o.Status = max(d.Status, 1)
		if o.Report == nil || d.Rank < 0 {
			where := ""
			if d.Node != "" {
				where = " (said by node " + d.Node + ")"
			}
			said = o.Message + where
		}
		if o.Report != nil {
			o.Report.Restarts, o.Report.Logs = a.policy.Account(d, a.Plan.Hostname), a.whereLogs()
			if compared != "" {
				o.Report.Restarts += "; " + compared
			}
			summary = o.Report.Text()
			if a.ErrorFile != "" {
				if err := o.Report.CopyErrorFile(a.ErrorFile); err != nil {
					a.Log.Warn().Err(err).Msg("error file not handed on")
				}
			}
		}
	}
	if o.Status != errhint.OK && a.Plan.Job.CompatExit {
		o.Status = 1
	}
	a.beside.end()
	a.status.Finished(o)
	a.summarize()
	res.Status = o.Status
	res.Over = d.Verdict == policy.Fail && (d.Reason == job.ReasonBackoffLimit || d.Reason == job.ReasonRestartLimit)
	switch {
	case said+summary == "":
	case a.LogJSON:
		o.Message = cmp.Or(said, o.Message)
		res.Report = o.Line(time.Now())
	case said != "":
		res.Report = "muster: error: " + said + "\n" + summary
	default:
		res.Report = summary
	}
	return res
}

// whereLogs says where the workers' output is.
func (a *Agent) whereLogs() string {
	if a.LogsGo != "" {
		return a.LogsGo
	}
	nodes := 1
	if a.meeting != nil {
		nodes = a.meeting.GroupWorldSize
	}
	return a.logs.Where(a.Plan.Hostname, nodes)
}

// agree returns the exit status that all nodes end with; ours is status.
func (a *Agent) agree(ctx context.Context, status int) int {
	if a.meeting.alone() {
		return status
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	value, err := a.meeting.Agree(ctx, strconv.AppendInt(nil, int64(status), 10))
	if err != nil {
		a.Log.Warn().Err(err).Msg("the other nodes may end with another exit status")
		return status
	}
	if agreed, err := strconv.ParseUint(string(value), 10, 8); err == nil && agreed > 0 {
		return int(agreed)
	}
	return status
}

// clean does what the clean policy says, unless the job was stopped from outside: then all must end.
func (a *Agent) clean(ctx context.Context, g *WorkerGroup, signal syscall.Signal, d policy.Decision) error {
	stop := context.WithoutCancel(ctx)
	ladder, patience := a.ladder(signal), time.Duration(0)
	switch rules := a.Plan.Job.Restart.Clean; {
	case d.Stops() || d.Leaves() || d.Reason == job.ReasonDeadline:
		patience = restartPatience // who stops a job counts the seconds
	case rules == job.CleanNone && a.awaitEnd(ctx, g):
		return a.finishGroup(stop, g, 0)
	case rules == job.CleanUnfinished:
		ladder.Spare = true
	default:
		ladder = a.ladder(signal) // another node may have bounded the grace while we waited
	}
	_, err := a.stopHearing(stop, g, ladder, patience)
	return err
}

// awaitEnd waits until the workers have ended by themselves, and reports whether they have: a signal to muster, the
// deadline and a node that others may go on without end the waiting.
func (a *Agent) awaitEnd(ctx context.Context, g *WorkerGroup) bool {
	if v := a.meeting.verdict; v != nil && v.Grace > 0 {
		return false // what decided says itself that others may go on
	}
	if n := len(g.running()); n > 0 {
		a.Log.Warn().Int("workers", n).Msg("the job is decided; waiting for workers to end by themselves (--clean-policy none)")
	}
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	for _, p := range g.running() {
		for waiting := true; waiting; {
			select {
			case <-p.Done():
				waiting = false
			case v, ok := <-a.meeting.verdicts:
				a.hear(ctx, v, ok)
				if v.Grace > 0 {
					return false
				}
			case <-ctx.Done():
				return false
			case <-deadline:
				return false
			}
		}
	}
	return true
}

// why is a decision as the status file tells it.
func why(d policy.Decision) report.Why {
	return report.Why{Reason: d.Reason, Message: d.Message(), Failed: d.Rank >= 0}
}

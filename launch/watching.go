package launch

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// untilVerdict calls f with a context that also ends when there is a verdict on the round. Whoever waits for verdicts
// next meets it then.
func (a *Agent) untilVerdict(ctx context.Context, f func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := a.meeting
	if m.rest != nil { // there is one already
		cancel()
		f(ctx)
		return
	}
	early := make(chan rendezvous.Verdict, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case v, ok := <-m.verdicts:
			if ok {
				early <- v
				cancel()
			}
		case <-ctx.Done():
		}
	})
	f(ctx)
	cancel()
	wg.Wait()
	if len(early) > 0 {
		m.verdicts, m.rest = early, m.verdicts
	}
}

// watch follows a running group until something is to be done about all of it. What it returns counts on every node.
func (a *Agent) watch(ctx context.Context, g *WorkerGroup) (policy.Decision, error) {
	m := a.meeting
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	defer g.cancelAgain()
	hangs, unwatch := a.watchLife(ctx)
	defer unwatch()
	defer a.watchSlow(ctx)()
	var linger, word <-chan time.Time // word: that of the other nodes is not waited for any longer
	var lingering policy.Decision
	var borne *report.Input // of failures that were borne until everybody had ended
	over, tallied := m.lease.over, a.meeting.Tallied()
	a.loop.begin(time.Now())
	a.policy.Step(policy.Event{
		Kind: policy.GroupStarted, At: time.Now(), World: m.WorldSize, Restarts: m.Restarts, Replacements: m.Replacements,
	})
	for {
		d, heard := policy.Decision{Rank: -1}, false // heard: it counts already
		var err error
		select {
		case w := <-g.exited:
			if d = a.stepExit(ctx, w); d.Verdict == policy.Hold {
				if word == nil {
					word = a.awaitWord()
				}
				d = policy.Decision{Rank: -1}
			}
		case <-over:
			if over = nil; !m.decided() { // others may not have missed this node, and wait for its workers
				d = policy.Decision{
					Verdict: policy.Reassemble, Reason: job.ReasonLeaseOver, Rank: -1,
					Text: "node " + a.Plan.Hostname + " was not heard of for too long, and its workers were killed",
				}
			}
		case sum := <-tallied:
			d = a.worldOver(ctx, sum, borne)
		case <-word:
			d = a.policy.Step(policy.Event{Kind: policy.WaitedEnough, At: time.Now()})
		case v, ok := <-m.verdicts:
			d, heard = a.hear(ctx, v, ok), true
		case <-ctx.Done():
			d = a.policy.Step(a.stopEvent(ctx, policy.StopRequested))
		case asked := <-a.Steering.restarts:
			d = a.answerRestart(asked, linger != nil)
		case <-a.Steering.pausing:
			d = a.pauseNow(linger != nil)
		case h := <-hangs:
			d = a.stepHang(ctx, h, linger != nil)
		case r := <-a.Steering.scales:
			d, err = a.scale(ctx, r, linger != nil)
			heard = true
		case <-deadline:
			d = a.policy.Step(policy.Event{Kind: policy.DeadlineReached, At: time.Now()})
		case <-linger:
			return lingering, nil
		case s := <-a.Forward:
			g.forward(s, s == a.Plan.Job.Checkpoint.Signal)
		case local := <-g.again:
			err = a.startWorkerAgain(ctx, g, local)
		}
		switch {
		case err != nil || d.Verdict == policy.CarryOn:
		case d.Verdict == policy.RestartWorker:
			a.suspect = true
			a.loop.begin(time.Now())
			err = a.endWorker(ctx, g, d)
			d = policy.Decision{Rank: -1}
		default:
			if d.Verdict == policy.Tally {
				borne, err = a.tally(ctx, g)
				d = policy.Decision{Rank: -1}
			}
			if err == nil && !heard {
				d.Exclude = a.slowNode(d)
				d, err = a.settle(ctx, d)
			}
		}
		if err != nil {
			return d, err
		}
		if linger != nil && d.Verdict == policy.CarryOn && len(g.running()) == 0 {
			return lingering, nil
		}
		if d.Verdict == policy.Succeed && d.Linger > 0 && linger == nil && len(g.running()) > 0 {
			linger, lingering = time.After(d.Linger), d
			continue
		}
		if d.Verdict != policy.CarryOn {
			return d, nil
		}
	}
}

// stepExit tells the policy of a worker's end.
func (a *Agent) stepExit(ctx context.Context, w *worker) policy.Decision {
	exit := w.proc.Exit()
	level := zerolog.DebugLevel
	if !exit.Success() && !w.stopped {
		level = zerolog.ErrorLevel
	}
	a.Log.WithLevel(level).Int("rank", w.Rank).Int("local_rank", w.LocalRank).Int("pid", w.proc.PID()).
		Int("exit_code", exit.Status()).Func(func(e *zerolog.Event) {
		if exit.Signal != 0 {
			e.Str("signal", proc.SignalName(exit.Signal))
		}
	}).Dur("dur_ms", exit.Ended.Sub(exit.Started)).Msg("worker exited")
	a.findHeldUp(ctx, w)
	return a.policy.Step(policy.Event{
		Kind: policy.WorkerExited, At: exit.Ended, Rank: w.Rank, Status: exit.Status(), Stopped: w.stopped, Echo: a.isEcho(ctx, w),
		Hopeless: a.isHopeless(ctx, w), Further: exit.Success() || w.stopped || a.further(ctx),
		Exclude: a.failingNode(w), //nolint:contextcheck // it looks up a name that is at hand
	})
}

// tally tells the other nodes what has become of this node's workers, all of which have ended. One of the nodes decides
// when all have, in worldOver; else there is nothing to do but to wait for what others decide. borne is what is known
// here of failures that do not decide before everybody has ended, nil where there are none such.
func (a *Agent) tally(ctx context.Context, g *WorkerGroup) (borne *report.Input, err error) {
	own, rules := a.policy.Tallied(), &a.Plan.Job.Restart
	if rules.Fail != job.QuorumAny && rules.Success != job.QuorumNone {
		if err := a.finishGroup(context.WithoutCancel(ctx), g, restartPatience); err != nil {
			return nil, err
		}
		borne = a.failureInput(g.exits(), a.evidence(), -1)
		a.tellPeers(ctx, borne.Failures())
	}
	if err := a.meeting.Tally(ctx, own); err != nil && ctx.Err() == nil { // where a signal came the loop meets it next
		return nil, fmt.Errorf("cannot count the workers of all nodes: %w", err)
	}
	return borne, nil
}

// worldOver decides for a world whose workers have all ended. The first of the failures that were borne decides, on
// whichever node it was.
func (a *Agent) worldOver(ctx context.Context, sum rendezvous.Tally, borne *report.Input) policy.Decision {
	e := policy.Event{Kind: policy.WorldEnded, At: time.Now(), Failed: sum.Failed, Rank: -1, Further: sum.Failed == 0 || a.further(ctx)}
	if borne != nil && sum.Failed > 0 {
		borne.Elsewhere = a.gather(ctx, restartGather)
		if r := report.New(*borne); r != nil {
			e.Rank, e.Status = r.Root.Rank, r.Status()
		}
	}
	return a.policy.Step(e)
}

// untilDeadline returns a context that also ends with the job's deadline, once that runs.
func (a *Agent) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if d := a.Plan.Job.Restart.Deadline; d > 0 && !a.begun.IsZero() && a.pausedAt.IsZero() {
		return context.WithDeadline(ctx, a.begun.Add(d))
	}
	return context.WithCancel(ctx)
}

// deadlineTimer returns a channel that delivers when d has passed since start; never for d = 0.
func deadlineTimer(start time.Time, d time.Duration) (<-chan time.Time, func() bool) {
	if d == 0 {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(start.Add(d)))
	return t.C, t.Stop
}

// ladder is how the job's workers are ended, beginning with signal.
func (a *Agent) ladder(signal syscall.Signal) proc.Ladder {
	l := proc.Ladder{Signal: signal, Grace: a.Plan.Job.Stop.Grace, Now: a.Hurry}
	if m := a.meeting; m != nil && m.verdict != nil && m.verdict.Grace > 0 {
		l.Grace = min(l.Grace, m.verdict.Grace)
	}
	return l
}

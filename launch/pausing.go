package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// A pause is a round without workers: the nodes meet in it as they do for any other, keep together by its board and
// their heartbeats, and wait. rendezvous.Orders says of each round whether it is one, so that a node which comes later,
// or follows a coordinator that died, knows it, too.

// pauseNow is the decision that somebody wants who has asked for a pause; nothing where nobody has, or where it cannot
// be had.
func (a *Agent) pauseNow(decided bool) policy.Decision {
	none := policy.Decision{Rank: -1}
	w := a.Steering.wished()
	if w == nil {
		return none
	}
	if why := a.unpausable(decided || a.meeting.decided()); why != "" {
		a.Log.Warn().Str("reason", why).Msg("the job is not paused")
		a.Steering.mu.Lock()
		a.Steering.wish = nil
		a.Steering.mu.Unlock()
		return none
	}
	return policy.Decision{
		Verdict: policy.Reassemble, Reason: job.ReasonPaused, Rank: -1, Text: w.text, Orders: a.meeting.pausedOrders(),
	}
}

// pausedOrders are those with which a pause begins. A check of this round that was not done yet is due when it ends.
func (m *meeting) pausedOrders() rendezvous.Orders {
	next := m.Orders
	next.Version++
	next.Paused = true
	next.Pauses++
	if next.CheckAt != 0 && next.CheckAt == m.Number && !m.checked {
		next.CheckAt = rendezvous.CheckResumed
	}
	return next
}

// resumedOrders are those with which a pause ends.
func (m *meeting) resumedOrders() rendezvous.Orders {
	next := m.Orders
	next.Version++
	next.Paused = false
	if next.CheckAt == rendezvous.CheckResumed {
		next.CheckAt = m.Number + 1
	}
	return next
}

func (a *Agent) unpausable(decided bool) string {
	switch {
	case decided:
		return "it is decided, and about to end"
	case !a.meeting.alone() && a.meeting.Board() == nil:
		return errOtherAgents.Error()
	}
	return ""
}

// errOtherAgents is why a job cannot be paused that agents of torchrun or DLRover take part in.
var errOtherAgents = errors.New("agents of torchrun or DLRover take part, which know of no pause")

// pauseFirst ends a round before its workers are started where somebody has asked for a pause.
func (a *Agent) pauseFirst(ctx context.Context) (policy.Decision, error) {
	d := a.pauseNow(false)
	if d.Verdict == policy.CarryOn {
		return d, nil
	}
	return a.settle(ctx, d)
}

// untilPause is untilVerdict that also ends when somebody has asked for a pause.
func (a *Agent) untilPause(ctx context.Context, f func(context.Context)) {
	a.untilVerdict(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-a.Steering.pausing:
					if a.Steering.wished() != nil {
						a.Steering.pokePause() // whoever looks next does it
						cancel()
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
		f(ctx)
		cancel()
		wg.Wait()
	})
}

// withoutWorkers does what was decided in a round none of whose workers is left here. It returns nothing where another
// round follows.
func (a *Agent) withoutWorkers(ctx context.Context, d policy.Decision) *Result {
	if d.StartsAgain() {
		a.tellNext(d)
		return nil
	}
	o := report.Outcome{Reason: d.Reason}
	if a.group != nil {
		o.Exits = a.group.exits()
	}
	res := a.finish(ctx, o, d)
	return &res
}

// tellNext says in the status why the round is over, where another one follows.
func (a *Agent) tellNext(d policy.Decision) {
	switch {
	case d.Reason == job.ReasonPaused:
		a.pausedAt = time.Now()
		a.pauseText = d.Message()
		a.status.Pausing(why(d))
	case d.Reason == job.ReasonResumed:
		a.status.Resuming(why(d))
	case a.meeting.Orders.Paused: // the nodes have changed: they pause again
		a.Log.Warn().Str("reason", d.Message()).Msg("meeting the other nodes again; the job stays paused")
	default:
		a.status.Restarting(d.Restarts, why(d))
	}
}

// entered takes in the pause of a round that was met.
func (a *Agent) entered(ctx context.Context) error {
	p := a.meeting.Orders
	a.Steering.met(a.meeting.Number, p, a.meeting.GroupWorldSize, a.meeting.Board())
	switch {
	case p.Paused && a.pausedAt.IsZero():
		a.pausedAt = time.Now()
	case !p.Paused && !a.pausedAt.IsZero():
		if !a.begun.IsZero() {
			a.begun = a.begun.Add(time.Since(a.pausedAt)) // the deadline has waited
		}
		a.pausedAt = time.Time{}
	}
	if p.Command == a.command {
		return nil
	}
	var words []string
	err := json.Unmarshal([]byte(p.Command), &words)
	var r *plan.Replacement
	if err == nil {
		r, err = a.Plan.Replacement(words)
	}
	if err != nil {
		return fmt.Errorf("cannot run the command that the job was resumed with: %w", err)
	}
	return a.replace(ctx, r, p.Command)
}

// resumption asks for the end of a pause.
type resumption struct {
	// words are the new command, none for the one that ran last; text says who asks.
	words []string
	text  string
	// answer takes what becomes of it: nil, or why the job stays paused.
	answer chan<- error
}

// paused waits in a round without workers until somebody ends the pause, or something ends the round. It returns
// nothing where another round follows.
func (a *Agent) paused(ctx context.Context) (*Result, error) {
	defer a.Steering.take(ctx, a.meeting.Round)()
	m := a.meeting
	told := report.Why{Reason: job.ReasonPaused, Message: cmp.Or(a.pauseText, "the job is paused") + "; muster resume goes on"}
	a.Log.Warn().Str("reason", told.Message).Msg("paused: no worker runs")
	a.status.Paused(m.Round, told)
	// What is being written to disk is written to its end, and in a round of several nodes they do that together.
	a.untilVerdict(ctx, func(ctx context.Context) { a.beginCheckpoints(ctx, false) })
	commands := a.answerCommands(ctx)
	defer commands.end()
	for {
		d := policy.Decision{Rank: -1}
		var err error
		select {
		case v, ok := <-m.verdicts:
			d = a.hear(ctx, v, ok)
		case <-ctx.Done():
			d, err = a.settle(ctx, a.policy.Step(a.stopEvent(ctx, policy.StopRequested)))
		case r := <-a.Steering.resumes:
			d, err = a.resume(ctx, commands, r)
		case r := <-a.Steering.scales:
			d, err = a.scale(ctx, r, false)
		case <-a.Forward: // there is nobody to receive it
		}
		if err != nil {
			return nil, err
		}
		if d.Verdict != policy.CarryOn {
			a.roundOver(d)
			return a.withoutWorkers(ctx, d), nil
		}
	}
}

// resume ends the pause, if the new command can be run on all nodes.
func (a *Agent) resume(ctx context.Context, c *commandRound, r resumption) (policy.Decision, error) {
	next := a.meeting.resumedOrders()
	if len(r.words) > 0 {
		text, refused := a.tryCommand(ctx, c, r.words)
		if refused != nil {
			r.answer <- refused
			return policy.Decision{Rank: -1}, nil //nolint:nilerr // whoever has asked is told; the pause goes on
		}
		next.Command = text
	}
	d, err := a.settle(ctx, policy.Decision{
		Verdict: policy.Reassemble, Reason: job.ReasonResumed, Rank: -1, Text: r.text, Orders: next,
	})
	switch {
	case err != nil:
		r.answer <- err
	case d.Reason != job.ReasonResumed:
		r.answer <- errhint.Code(fmt.Errorf("the job is not resumed now: %s", d.Message()), errhint.TryAgain)
	default:
		r.answer <- nil
	}
	return d, err
}

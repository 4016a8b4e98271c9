package policy

import (
	"fmt"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// counts are what limits and delays go by.
type counts struct {
	restarts int         // of the whole job, because of failures
	replaced int         // nodes that the job has lost
	here     int         // of this node or one of its workers, within a round
	own      []time.Time // restarts that failures on this node caused, as far as the limits still count them
	job      []time.Time // restarts and losses of the whole job, by the time at which this node learnt of them
	idle     int         // restarts since the job last came further
	inARow   int         // restarts since the group last ran healthy: the exponent of the delay
}

// Restarts is how often the whole job has been restarted because of failures.
func (p *Policy) Restarts() int { return p.restarts }

// RestartsHere is how often this node or one of its workers has been restarted within the round.
func (p *Policy) RestartsHere() int { return p.here }

// RestartsLeft reports whether a failure on this node may lead to a restart, now or once others no longer count.
func (p *Policy) RestartsLeft() bool {
	return len(p.own) < p.rules.MaxRestarts || p.rules.MaxRestarts > 0 && p.rules.Window > 0
}

// learn notes n restarts and losses of the job. More than the limit can count are not kept.
func (p *Policy) learn(now time.Time, n int) {
	for range min(n, max(p.rules.BackoffLimit, 0)+1) {
		p.job = append(p.job, now)
	}
}

// overLimit returns the limit that one more restart would break, or "".
func (p *Policy) overLimit(now time.Time) job.Reason {
	if p.rules.Window > 0 {
		old := func(at time.Time) bool { return now.Sub(at) >= p.rules.Window }
		p.own, p.job = dropWhile(p.own, old), dropWhile(p.job, old)
	}
	switch {
	case p.rules.MaxRestarts == 0:
		return job.ReasonWorkerFailed // there was no limit to reach
	case len(p.own) >= p.rules.MaxRestarts:
		return job.ReasonMaxRestarts
	case p.rules.BackoffLimit >= 0 && len(p.job) >= p.rules.BackoffLimit:
		return job.ReasonBackoffLimit
	}
	return ""
}

// Keep makes what has been counted in this round final: a verdict that follows adds to it.
func (p *Policy) Keep() { p.before = p.counts }

// Account says how many restarts were used, and why d, which ends the job, leads to no other one. here is this node's
// name.
func (p *Policy) Account(d Decision, here string) string {
	limit := p.rules.MaxRestarts
	if limit == 0 {
		return "none was asked for"
	}
	text := fmt.Sprintf("%d of %d used", len(p.own), limit)
	if limit >= job.Unlimited {
		text = fmt.Sprintf("%d used, of any number", len(p.own))
	}
	if p.rules.Window > 0 {
		text += fmt.Sprintf(" within %v", p.rules.Window)
	}
	if d.Node != "" && d.Node != here {
		text += fmt.Sprintf(" on node %s, %d by the whole job: node %s has decided", here, p.restarts, d.Node)
	} else if p.restarts > len(p.own) {
		text += fmt.Sprintf(" on node %s, %d by the whole job", here, p.restarts)
	}
	switch {
	case d.Reason == job.ReasonMaxRestarts:
		text += ": none is left"
	case d.Reason == job.ReasonBackoffLimit:
		text += fmt.Sprintf(": the limit of %d for the whole job is reached (--backoff-limit)", p.rules.BackoffLimit)
	case d.InLoop():
		text += fmt.Sprintf(": %d in a row have not brought the job further (--crash-loop)", p.rules.CrashLoop)
	case d.Reason == job.ReasonFatal:
		text += fmt.Sprintf(": status %d is fatal (--fatal-exit-codes)", d.Status)
	case d.Reason == job.ReasonWorkerFailed && !p.restartable(d.Status):
		text += fmt.Sprintf(": --restart-policy %s starts nothing again after status %d", p.rules.Policy, d.Status)
	case d.Reason == job.ReasonWorkerFailed && (d.Node == "" || d.Node == here):
		text += ": it would fail of the same again"
	}
	return text
}

// InLoop reports whether a crash loop ends the job with one more failure without progress.
func (p *Policy) InLoop() bool { return p.rules.CrashLoop > 0 && p.idle >= p.rules.CrashLoop }

// inLoop takes in whether the job has come further, and reports whether the failure e ends it as a crash loop.
func (p *Policy) inLoop(e Event) bool {
	if e.Further {
		p.idle = 0
	}
	return p.InLoop()
}

// looping ends the job where as many restarts as a crash loop has have not brought it further, before the failure e.
func (p *Policy) looping(e Event) (Decision, bool) {
	if !p.inLoop(e) {
		return Decision{}, false
	}
	if !e.Exclude.Any() {
		p.state = decided
	}
	text := e.Text
	if e.Kind != WorkersHang {
		text = fmt.Sprintf("rank %d ended with status %d", e.Rank, e.Status)
		if e.Rank < 0 {
			text = "workers failed"
		}
	} else {
		e.Rank = -1
	}
	return Decision{
		Verdict: Fail, Reason: job.ReasonCrashLoop, Rank: e.Rank, Status: errhint.DoNotRetry,
		Text: text + fmt.Sprintf(", and %d restarts in a row have not brought the job further", p.idle),
	}, true
}

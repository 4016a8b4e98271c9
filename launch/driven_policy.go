package launch

import (
	"fmt"
	"math"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// DrivenPolicy decides about the workers of a job that a driver starts one by one, by the same rules as of every other job. What
// belongs to the driver is how those that are missing are started anew, and that no --max-restarts bounds it. Not safe for
// concurrent use.
type DrivenPolicy struct {
	p       *policy
	replace int // the limit of lost nodes; negative: none
}

// DrivenRuling is what such a policy says.
type DrivenRuling struct {
	// Over says that the job is decided: with success, after Linger where others may go on for a while, or with the exit status
	// Status of the worker of Rank for Why, the last part of a sentence. Limit says that it is for --backoff-limit or --restart-limit.
	Over, Success, Limit bool
	Linger               time.Duration
	Rank, Status         int
	Why                  string
	// Anew says that the world has failed, or is to begin again: the next one may begin after Delay.
	Anew  bool
	Delay time.Duration
}

// NewDrivenPolicy returns the policy of a job before its first world. chance returns numbers in [0, 1), for the jitter of pauses.
func NewDrivenPolicy(rules job.RestartRules, chance func() float64) *DrivenPolicy {
	rules.MaxRestarts, rules.Scope = math.MaxInt, job.ScopeWorld
	return &DrivenPolicy{p: newPolicy(rules, 0, chance), replace: rules.ReplaceLimit}
}

// World says that a world of size workers has begun.
func (d *DrivenPolicy) World(at time.Time, size int) {
	if d.p.state == running { // hosts came or went
		d.p.state = waiting
	}
	d.p.local = size
	d.p.step(event{Kind: groupStarted, At: at, World: size})
}

// Exited says that a worker of the world has ended by itself.
func (d *DrivenPolicy) Exited(at time.Time, rank, status int) DrivenRuling {
	return d.ruling(d.p.step(event{Kind: workerExited, At: at, Rank: rank, Status: status}))
}

// Ended says that the world has succeeded by the driver's own rules.
func (d *DrivenPolicy) Ended(at time.Time) DrivenRuling {
	if d.p.state == decided || d.p.state == lingering {
		return DrivenRuling{Over: true, Success: true}
	}
	return d.ruling(d.p.success(at, true))
}

// Next says that another world is to follow this one by the driver's own rules. Where failures that the policy has borne are why,
// it is a restart as any other: a worker that always fails would have worlds begun for ever. The zero ruling agrees.
func (d *DrivenPolicy) Next(at time.Time) DrivenRuling {
	if d.p.state != running || len(d.p.failures) == 0 {
		return DrivenRuling{} // hosts have changed, or it was judged when the worker ended
	}
	return d.ruling(d.p.judge(at))
}

// Lost says that a node of the world was lost, or could not be reached, with all its workers: status counts for those. It leads
// to a new world under every policy but never.
func (d *DrivenPolicy) Lost(at time.Time, rank, status int) DrivenRuling {
	p := d.p
	if p.state != running {
		return DrivenRuling{}
	}
	over := func(why string, limit bool) DrivenRuling {
		p.state = decided
		return DrivenRuling{Over: true, Limit: limit, Rank: rank, Status: status, Why: why}
	}
	switch {
	case p.rules.Policy == job.RestartNever:
		return over("--restart-policy never", false)
	case d.replace >= 0 && p.replaced >= d.replace:
		return over(fmt.Sprintf("the limit of %d lost nodes is reached (--restart-limit)", d.replace), true)
	case p.overLimit(at) == reasonBackoffLimit:
		return over(d.limit(), true)
	}
	p.replaced++
	p.learn(at, 1)
	p.state = waiting
	return DrivenRuling{Anew: true}
}

// ruling is a decision of the policy as drivers take it.
func (d *DrivenPolicy) ruling(made decision) DrivenRuling {
	switch made.Verdict {
	case restart:
		return DrivenRuling{Anew: true, Delay: made.Delay}
	case succeed:
		return DrivenRuling{Over: true, Success: true, Linger: made.Linger}
	case fail:
		return DrivenRuling{Over: true, Limit: made.Reason == reasonBackoffLimit, Rank: made.Rank, Status: max(1, made.Status), Why: d.why(made)}
	default:
		return DrivenRuling{}
	}
}

// why says what no further world comes of.
func (d *DrivenPolicy) why(made decision) string {
	rules := &d.p.rules
	switch {
	case made.Reason == reasonFatal:
		return fmt.Sprintf("%d is one of --fatal-exit-codes", made.Status)
	case made.Reason == reasonBackoffLimit:
		return d.limit()
	case rules.Policy == job.RestartExitCode || rules.Policy == job.RestartOnNodeFailOrExitCode:
		return fmt.Sprintf("%d is none of --retryable-exit-codes", made.Status)
	}
	return "--restart-policy " + string(rules.Policy)
}

func (d *DrivenPolicy) limit() string {
	text := fmt.Sprintf("the limit of %d restarts of the whole job is reached (--backoff-limit)", d.p.rules.BackoffLimit)
	if w := d.p.rules.Window; w > 0 {
		text += fmt.Sprintf(" within %v (--restart-window)", w)
	}
	return text
}

// reasonOf names the end of a driven job in the words of the status file.
func (d *Driven) reasonOf(end DrivenEnd) reason {
	switch {
	case end.Stopped:
		return reasonStopped
	case end.Status == errhint.OK:
		return reasonSucceeded
	case end.Status == errhint.Deadline:
		return reasonDeadline
	case end.Limit:
		return reasonBackoffLimit
	case len(end.Failures) == 0 && end.Status == errhint.TryAgain:
		return reasonNotMet
	case len(end.Failures) == 0 && end.Status == errhint.Usage:
		return reasonRefused
	case len(end.Failures) == 0 && end.Status == errhint.Internal:
		return reasonInternal
	case d.fatal.Has(end.Status):
		return reasonFatal
	}
	return reasonWorkerFailed
}

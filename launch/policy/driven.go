package policy

import (
	"fmt"
	"math"
	"time"

	"muster/launch/job"
)

// Driven decides about the workers of a job that a driver starts one by one, by the same rules as of every other job.
// What belongs to the driver is how those that are missing are started anew, and that no --max-restarts bounds it. Not
// safe for concurrent use.
type Driven struct {
	p       *Policy
	replace int // the limit of lost nodes; negative: none
}

// Ruling is what such a policy says.
type Ruling struct {
	// Over says that the job is decided: with success, after Linger where others may go on for a while, or with the
	// exit status Status of the worker of Rank for Why, the last part of a sentence. Limit says that it is for
	// --backoff-limit or --restart-limit.
	Over, Success, Limit bool
	Linger               time.Duration
	Rank, Status         int
	Why                  string
	// Anew says that the world has failed, or is to begin again: the next one may begin after Delay.
	Anew  bool
	Delay time.Duration
}

// NewDriven returns the policy of a job before its first world. chance returns numbers in [0, 1), for the jitter of
// pauses.
func NewDriven(rules job.RestartRules, chance func() float64) *Driven {
	rules.MaxRestarts, rules.Scope = math.MaxInt, job.ScopeWorld
	return &Driven{p: New(rules, 0, chance), replace: rules.ReplaceLimit}
}

// World says that a world of size workers has begun.
func (d *Driven) World(at time.Time, size int) {
	if d.p.state == running { // hosts came or went
		d.p.state = waiting
	}
	d.p.local = size
	d.p.Step(Event{Kind: GroupStarted, At: at, World: size})
}

// Exited says that a worker of the world has ended by itself.
func (d *Driven) Exited(at time.Time, rank, status int) Ruling {
	return d.ruling(d.p.Step(Event{Kind: WorkerExited, At: at, Rank: rank, Status: status}))
}

// Ended says that the world has succeeded by the driver's own rules.
func (d *Driven) Ended(at time.Time) Ruling {
	if d.p.state == decided || d.p.state == lingering {
		return Ruling{Over: true, Success: true}
	}
	return d.ruling(d.p.success(at, true))
}

// Next says that another world is to follow this one by the driver's own rules. Where failures that the policy has
// borne are why, it is a restart as any other: a worker that always fails would have worlds begun for ever. The zero
// ruling agrees.
func (d *Driven) Next(at time.Time) Ruling {
	if d.p.state != running || len(d.p.failures) == 0 {
		return Ruling{} // hosts have changed, or it was judged when the worker ended
	}
	return d.ruling(d.p.judge(at))
}

// Lost says that a node of the world was lost, or could not be reached, with all its workers: status counts for those.
// It leads to a new world under every policy but never.
func (d *Driven) Lost(at time.Time, rank, status int) Ruling {
	p := d.p
	if p.state != running {
		return Ruling{}
	}
	over := func(why string, limit bool) Ruling {
		p.state = decided
		return Ruling{Over: true, Limit: limit, Rank: rank, Status: status, Why: why}
	}
	switch {
	case p.rules.Policy == job.RestartNever:
		return over("--restart-policy never", false)
	case d.replace >= 0 && p.replaced >= d.replace:
		return over(fmt.Sprintf("the limit of %d lost nodes is reached (--restart-limit)", d.replace), true)
	case p.overLimit(at) == job.ReasonBackoffLimit:
		return over(d.limit(), true)
	}
	p.replaced++
	p.learn(at, 1)
	p.state = waiting
	return Ruling{Anew: true}
}

// ruling is a decision of the policy as drivers take it.
func (d *Driven) ruling(made Decision) Ruling {
	switch made.Verdict {
	case Restart:
		return Ruling{Anew: true, Delay: made.Delay}
	case Succeed:
		return Ruling{Over: true, Success: true, Linger: made.Linger}
	case Fail:
		return Ruling{
			Over: true, Limit: made.Reason == job.ReasonBackoffLimit, Rank: made.Rank, Status: max(1, made.Status),
			Why: d.why(made),
		}
	default:
		return Ruling{}
	}
}

// why says what no further world comes of.
func (d *Driven) why(made Decision) string {
	rules := &d.p.rules
	switch {
	case made.Reason == job.ReasonFatal:
		return fmt.Sprintf("%d is one of --fatal-exit-codes", made.Status)
	case made.Reason == job.ReasonBackoffLimit:
		return d.limit()
	case rules.Policy == job.RestartExitCode || rules.Policy == job.RestartOnNodeFailOrExitCode:
		return fmt.Sprintf("%d is none of --retryable-exit-codes", made.Status)
	}
	return "--restart-policy " + string(rules.Policy)
}

func (d *Driven) limit() string {
	text := fmt.Sprintf("the limit of %d restarts of the whole job is reached (--backoff-limit)", d.p.rules.BackoffLimit)
	if w := d.p.rules.Window; w > 0 {
		text += fmt.Sprintf(" within %v (--restart-window)", w)
	}
	return text
}

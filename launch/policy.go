package launch

import (
	"fmt"
	"math"
	"time"
)

// eventKind says what happened to a worker group or its job.
type eventKind int

const (
	groupStarted     eventKind = iota // every worker of a round runs
	workerExited                      // one worker ended
	deadlineReached                   // RestartRules.Deadline has passed since the first start
	stopWasRequested                  // a signal, or somebody through the control socket
)

// event is what the policy is told. Events come in the order of their times.
type event struct {
	Kind eventKind
	At   time.Time
	// Rank and Status belong to workerExited: the global rank, and 0 to 255 with 128+n for signal n.
	Rank, Status int
	// Stopped says of a workerExited that muster had already signalled this worker: whatever its status is, it means
	// nothing.
	Stopped bool
}

// verdict is what is to be done after an event.
type verdict int

const (
	carryOn    verdict = iota // nothing changes
	restart                   // stop the group, pause for Delay, start it again
	succeed                   // the job has succeeded; stop what is left after Linger
	fail                      // the job has failed; stop the group
	stopForNow                // muster was asked to stop; stop the group
)

// reason names why a job or a round ended, in the words of the status file.
type reason string

const (
	reasonSucceeded    reason = "WorkersSucceeded"
	reasonWorkerFailed reason = "WorkerFailed"         // restarted, or final because nothing asks for a restart
	reasonFatal        reason = "FatalExitCode"        // a code of RestartRules.Fatal
	reasonMaxRestarts  reason = "MaxRestartsReached"   // RestartRules.MaxRestarts
	reasonBackoffLimit reason = "BackoffLimitReached"  // RestartRules.BackoffLimit
	reasonDeadline     reason = "DeadlineExceeded"     // RestartRules.Deadline
	reasonStopped      reason = "StopRequested"        // a signal to muster
	reasonFinished     reason = "WorkersSucceededOnce" // restarted although all went well: RestartAlways
)

// decision is the policy's answer to an event.
type decision struct {
	Verdict verdict
	Reason  reason
	// Rank and Status are the failure that decided, -1 and 0 where none did. The failure report may know better which
	// worker is to blame: it has read what they said.
	Rank, Status int
	// Restarts belongs to restart: how many restarts the job has then had (TORCHELASTIC_RESTART_COUNT).
	Restarts int
	// Delay belongs to restart: the pause before the next start.
	Delay time.Duration
	// Linger belongs to succeed: how long the workers that still run may go on.
	Linger time.Duration
}

// policyState is where a job stands. It only moves from waiting to running and back until it is decided.
type policyState int

const (
	waiting   policyState = iota // for the first start, or for the next one while the last group is being stopped
	running                      // a group runs
	lingering                    // succeeded, but some workers still run
	decided                      // nothing can happen any more
)

// policy decides about worker exits. It is a pure state machine: it knows no clock, socket or process, time comes with
// the events and chance from a function. Not safe for concurrent use.
//
// The order of evaluation of an exit is fixed: an exit of a worker that muster ended is neutral; then the success policy
// is asked, the fatal codes, the fail policy, the restart policy, and the limits.
//
// The quorums of success mean: all: every worker ended with 0. any, rank0: the first worker, or rank 0, ended with 0;
// the others linger. none: no status is asked for, and the job has succeeded when all workers have ended without
// meeting the fail policy. The quorums of fail mean: any: one worker ended with another status than 0. all, rank0: every
// worker, or rank 0, did. none: failures are waited out. A group whose workers have all ended without either policy
// being met has failed, with its first failure.
//
// The first failure by time (rank 0's where only rank 0 can fail the group) decides what is restarted, because those
// behind it are mostly its victims. A fatal code ends the job whoever brings it and whatever the fail policy is, also when
// a restart has been decided and the group is being stopped; so does an exit that meets the success policy: it had ended
// before the signal came.
type policy struct {
	rules RestartRules
	world int
	// chance returns numbers in [0, 1).
	chance func() float64

	state   policyState
	started time.Time // of the running group
	// statuses of the round's workers that ended by themselves, by rank.
	statuses map[int]int
	first    event // the first failure among them; meaningful when failures > 0
	failures int

	restarts int         // all of them
	counted  []time.Time // those that the limits still count
	inARow   int         // those since the group last ran healthy for a Window: the exponent of the delay
}

// newPolicy returns the policy of a job of world workers. chance returns numbers in [0, 1) for the jitter of delays.
func newPolicy(rules RestartRules, world int, chance func() float64) *policy {
	return &policy{rules: rules, world: world, chance: chance}
}

// step takes one event and says what is to be done.
func (p *policy) step(e event) decision {
	if p.state == decided {
		return decision{Rank: -1}
	}
	switch e.Kind {
	case groupStarted:
		p.begin(e)
	case workerExited:
		return p.exit(e)
	case deadlineReached:
		return p.end(fail, reasonDeadline)
	case stopWasRequested:
		return p.end(stopForNow, reasonStopped)
	}
	return decision{Rank: -1}
}

func (p *policy) begin(e event) {
	if p.state != waiting {
		return
	}
	p.state, p.started = running, e.At
	p.statuses, p.failures = make(map[int]int, p.world), 0
}

// end ends the job for a reason outside the group. A job that has already succeeded stays so, and lingers no longer.
func (p *policy) end(v verdict, why reason) decision {
	was := p.state
	p.state = decided
	if was == lingering {
		return decision{Verdict: succeed, Reason: reasonSucceeded, Rank: -1}
	}
	return decision{Verdict: v, Reason: why, Rank: -1}
}

func (p *policy) exit(e event) decision {
	none := decision{Rank: -1}
	if _, again := p.statuses[e.Rank]; e.Stopped || again || p.statuses == nil || p.state == lingering {
		return none
	}
	p.statuses[e.Rank] = e.Status
	if e.Status != 0 {
		if p.failures == 0 {
			p.first = e
		}
		p.failures++
	}
	stopping := p.state == waiting // for a restart; this worker ended by itself before our signal reached it
	switch {
	case p.succeeded() && (!stopping || p.rules.Policy != RestartAlways):
		return p.success(e)
	case e.Status != 0 && p.rules.Fatal.Has(e.Status):
		return p.failure(e, reasonFatal)
	case stopping:
		return none
	case p.failed(e):
		if p.rules.Fail == QuorumRank0 {
			return p.retry(e.At, e) // the failures before it were borne
		}
		return p.retry(e.At, p.first)
	case len(p.statuses) < p.world:
		return none
	case p.rules.Success == QuorumNone:
		return p.success(e)
	default: // all have ended, and neither policy was met
		return p.retry(e.At, p.first)
	}
}

// succeeded reports whether the exits so far meet the success policy.
func (p *policy) succeeded() bool {
	switch p.rules.Success {
	case QuorumNone:
		return false // decided when all have ended
	case QuorumAny:
		return len(p.statuses) > p.failures
	case QuorumRank0:
		status, ended := p.statuses[0]
		return ended && status == 0
	default:
		return len(p.statuses) == p.world && p.failures == 0
	}
}

// failed reports whether the exits so far, of which e is the last, meet the fail policy.
func (p *policy) failed(e event) bool {
	switch p.rules.Fail {
	case QuorumNone:
		return false
	case QuorumAll:
		return p.failures == p.world
	case QuorumRank0:
		return e.Rank == 0 && e.Status != 0
	default:
		return e.Status != 0
	}
}

// success ends the job, or under RestartAlways starts the group again while the limits allow it: restarts of any cause
// count.
func (p *policy) success(e event) decision {
	if p.rules.Policy == RestartAlways && p.overLimit(e.At) == "" {
		return p.again(e.At, decision{Reason: reasonFinished, Rank: -1})
	}
	d := decision{Verdict: succeed, Reason: reasonSucceeded, Rank: -1}
	if len(p.statuses) == p.world {
		p.state = decided
		return d
	}
	p.state, d.Linger = lingering, p.rules.Linger
	return d
}

// retry decides between a restart and the end, for a round that has failed by the failure e.
func (p *policy) retry(now time.Time, e event) decision {
	if !p.restartable(e.Status) {
		return p.failure(e, reasonWorkerFailed)
	}
	if why := p.overLimit(now); why != "" {
		return p.failure(e, why)
	}
	return p.again(now, decision{Reason: reasonWorkerFailed, Rank: e.Rank, Status: e.Status})
}

func (p *policy) failure(e event, why reason) decision {
	p.state = decided
	return decision{Verdict: fail, Reason: why, Rank: e.Rank, Status: e.Status}
}

// restartable reports whether the restart policy wants a failure with this status restarted.
func (p *policy) restartable(status int) bool {
	switch p.rules.Policy {
	case RestartOnFailure, RestartAlways:
		return true
	case RestartExitCode:
		return p.rules.Retryable.Has(status)
	default:
		return false
	}
}

// overLimit returns the limit that one more restart would break, or "".
func (p *policy) overLimit(now time.Time) reason {
	if p.rules.Window > 0 {
		for len(p.counted) > 0 && now.Sub(p.counted[0]) >= p.rules.Window {
			p.counted = p.counted[1:]
		}
	}
	switch {
	case p.rules.MaxRestarts == 0:
		return reasonWorkerFailed // there was no limit to reach
	case len(p.counted) >= p.rules.MaxRestarts:
		return reasonMaxRestarts
	case p.rules.BackoffLimit >= 0 && len(p.counted) >= p.rules.BackoffLimit:
		return reasonBackoffLimit
	}
	return ""
}

// again completes d to a restart.
func (p *policy) again(now time.Time, d decision) decision {
	if p.rules.Window > 0 && now.Sub(p.started) >= p.rules.Window {
		p.inARow = 0
	}
	d.Verdict, d.Delay = restart, p.delay()
	p.restarts++
	p.inARow++
	p.counted = append(p.counted, now)
	p.state, d.Restarts = waiting, p.restarts
	return d
}

// delay returns the pause before the next restart. Its jitter takes away up to half: many nodes that fell over together
// do not come back together.
func (p *policy) delay() time.Duration {
	if p.inARow == 0 {
		return 0
	}
	d := float64(p.rules.Delay) * math.Pow(max(p.rules.DelayFactor, 1), float64(p.inARow-1))
	limit := float64(math.MaxInt64 / 2) // 146 years: what a Duration holds, with room for rounding
	if p.rules.DelayMax > 0 {
		limit = float64(p.rules.DelayMax)
	}
	return time.Duration(min(d, limit) * (1 - p.chance()/2))
}

// message returns the decision as a sentence for people.
func (d decision) message() string {
	var text string
	switch {
	case d.Rank >= 0:
		text = fmt.Sprintf("rank %d ended with status %d", d.Rank, d.Status)
	case d.Reason == reasonDeadline:
		text = "the deadline was reached"
	case d.Reason == reasonStopped:
		text = "muster was asked to stop"
	default:
		text = "the workers succeeded"
	}
	switch d.Reason {
	case reasonFatal:
		text += ", which is fatal"
	case reasonMaxRestarts:
		text += ", and no restart is left"
	case reasonBackoffLimit:
		text += ", and the backoff limit is reached"
	default:
	}
	if d.Verdict == restart {
		text += fmt.Sprintf("; restart %d", d.Restarts)
		if d.Delay > 0 {
			text += fmt.Sprintf(" after %v", d.Delay.Round(time.Millisecond))
		}
	}
	return text
}

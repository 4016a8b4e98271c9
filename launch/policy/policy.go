package policy

import (
	"slices"
	"time"

	"muster/launch/job"
	"muster/rendezvous"
)

// EventKind says what happened to a worker group or its job.
type EventKind int

// The kinds of event.
const (
	GroupStarted    EventKind = iota // every worker of this node runs
	WorkerExited                     // one worker ended
	DeadlineReached                  // RestartRules.Deadline has passed since the first start
	StopRequested                    // a signal, or somebody who asks for the end of the whole job
	WorldEnded                       // every worker of every node has ended by itself: told to one agent only
	VerdictHeard                     // how the round ends for all, whatever was decided here
	WaitedEnough                     // no word came of the other nodes after Hold
	WorkersHang                      // no worker of the job has shown a sign of life for HangRules.Timeout
	NotAgreed                        // muster is asked to stop, and nobody was told of what this node wanted
)

// Event is what the policy is told. Events come in the order of their times.
type Event struct {
	Kind EventKind
	At   time.Time
	// Rank and Status belong to WorkerExited: the global rank, and 0 to 255 with 128+n for signal n. The latter is also
	// that with which a job ends that is to end Everywhere.
	Rank, Status int
	// Stopped says of a WorkerExited that muster had already signalled this worker: whatever its status is, it means
	// nothing.
	Stopped bool
	// Echo says of a WorkerExited that the worker failed because a connection of it broke.
	Echo bool
	// Hopeless says of a WorkerExited that what it failed of would be there again after a restart.
	Hopeless bool
	// Further says of a failure, and of WorkersHang, WorldEnded and VerdictHeard, that the job has come further with the
	// group than before it.
	Further bool
	// World belongs to GroupStarted: the workers of all nodes, 0 where this node is alone. Restarts and Replacements
	// are the whole job's so far.
	World, Restarts, Replacements int
	// Failed belongs to WorldEnded: how many of the world's workers failed. Rank and Status are then the first of them,
	// -1 and 0 where nobody knows.
	Failed int
	// Everywhere belongs to StopRequested and NotAgreed: the whole job is to end, and not this node's part of it. Text
	// says who has asked for that.
	Everywhere bool
	Text       string
	// StartAgain says of WorkersHang that the workers are to start again, if a restart is left; the job fails
	// otherwise, unless it is Borne. Its Text says what they do, its Status how the job ends.
	StartAgain, Borne bool
	// Exclude is the node that workers can go on without: it belongs to WorkersHang, where it is to leave, and to
	// WorkerExited, where it is to leave instead of the end of a job in a crash loop. The zero value is none.
	Exclude rendezvous.Expulsion
	// Said belongs to VerdictHeard, and Own says that this node had proposed it.
	Said rendezvous.Verdict
	Own  bool
}

// state is where a job stands. It only moves from waiting to running and back until it is decided.
type state int

const (
	waiting   state = iota // for the first start, or for the next one while the last group is being stopped
	running                // a group runs
	lingering              // succeeded, but some workers still run
	decided                // nothing can happen any more, unless the other nodes decided otherwise
)

// Policy decides about worker exits. It is a pure state machine: it knows no clock, socket or process, time comes with
// the events and chance from a function. Not safe for concurrent use.
//
// The order of evaluation of an exit is fixed: an exit of a worker that muster ended is neutral; then the success
// policy is asked, the fatal codes, the fail policy, the restart policy, and the limits.
//
// The quorums of success mean: all: every worker ended with 0. any, rank0: the first worker, or rank 0, ended with 0;
// the others linger. none: no status is asked for, and the job has succeeded when all workers have ended without
// meeting the fail policy. The quorums of fail mean: any: one worker ended with another status than 0. all, rank0:
// every worker, or rank 0, did. none: failures are waited out. A group whose workers have all ended without either
// policy being met has failed, with its first failure.
//
// The first failure by time (rank 0's where only rank 0 can fail the group) decides what is restarted, because those
// behind it are mostly its victims. A fatal code ends the job whoever brings it and whatever the fail policy is, also
// when a restart has been decided and the group is being stopped; so does an exit that meets the success policy: it had
// ended before the signal came.
//
// In a world of several nodes each has a policy of its own, which sees its own workers. What it decides is a proposal:
// the first one counts on every node, and comes as VerdictHeard where it is another node's. What needs the whole world
// (all of success and fail, and none) is decided where the sum of all nodes becomes complete: a node whose workers have
// ended without deciding anything answers tally, and one of them is told WorldEnded.
//
// In such a world workers whose connections broke may be victims of a node that nobody knows to be lost yet. While
// there is no other failure here, what they would lead to is held back, unless it were this node's own affair (scope):
// decided is when a worker fails in another way, on WaitedEnough, or by what another node says.
type Policy struct {
	rules job.RestartRules
	// local is the number of workers on this node, world that of all nodes.
	local, world int
	// chance returns numbers in [0, 1).
	chance func() float64

	state   state
	started time.Time // of the running group
	// statuses of the round's workers here that ended by themselves, by rank, and the failures among them, by time.
	statuses map[int]int
	failures []Event
	// held says that the failures so far decide, and are held back.
	held bool

	counts
	// before is what was counted when the round began, and what this node did within it: a verdict of all nodes takes
	// the place of what was counted for the proposal of this one.
	before counts
}

// New returns the policy of a node with local workers. chance returns numbers in [0, 1) for the jitter of delays.
func New(rules job.RestartRules, local int, chance func() float64) *Policy {
	return &Policy{rules: rules, local: local, world: local, chance: chance}
}

// Step takes one event and says what is to be done.
func (p *Policy) Step(e Event) Decision {
	switch e.Kind {
	case VerdictHeard:
		return p.follow(e)
	case NotAgreed: // what was decided here counts for nobody, a success included
		p.counts, p.held, p.state = p.before, false, decided
		return stopped(e)
	default:
	}
	if p.state == decided {
		return Decision{Rank: -1}
	}
	switch e.Kind {
	case GroupStarted:
		p.begin(e)
	case WorkerExited:
		return p.exit(e)
	case DeadlineReached:
		return p.end(Fail, job.ReasonDeadline)
	case StopRequested:
		if d := p.end(StopForNow, job.ReasonStopped); d.Verdict != StopForNow {
			return d
		}
		return stopped(e)
	case WorldEnded:
		return p.everybodyEnded(e)
	case WorkersHang:
		return p.hang(e)
	case WaitedEnough:
		if p.held && p.state == running {
			return p.judge(e.At)
		}
	default:
	}
	return Decision{Rank: -1}
}

// stopped is how a job ends that somebody has stopped.
func stopped(e Event) Decision {
	d := Decision{Verdict: StopForNow, Reason: job.ReasonStopped, Rank: -1}
	if e.Everywhere {
		d.Verdict, d.Text, d.Status = Fail, e.Text, e.Status
	}
	return d
}

func (p *Policy) begin(e Event) {
	if p.state != waiting {
		return
	}
	p.state, p.started = running, e.At
	p.world = max(e.World, p.local)
	p.statuses, p.failures, p.held = make(map[int]int, p.local), nil, false
	more := max(e.Restarts-p.restarts, 0)
	p.learn(e.At, more+max(e.Replacements-p.replaced, 0))
	p.restarts, p.replaced, p.inARow = p.restarts+more, max(p.replaced, e.Replacements), p.inARow+more
	p.before = p.counts
}

// end ends the job for a reason outside the group. A job that has already succeeded stays so, and lingers no longer.
func (p *Policy) end(v Verdict, why job.Reason) Decision {
	was := p.state
	p.state, p.held = decided, false
	if was == lingering {
		return Decision{Verdict: Succeed, Reason: job.ReasonSucceeded, Rank: -1}
	}
	return Decision{Verdict: v, Reason: why, Rank: -1}
}

func (p *Policy) exit(e Event) Decision {
	none := Decision{Rank: -1}
	if _, again := p.statuses[e.Rank]; e.Stopped || again || p.statuses == nil || p.state == lingering {
		return none
	}
	p.statuses[e.Rank] = e.Status
	if e.Status != 0 {
		p.failures = append(p.failures, e)
	}
	stopping := p.state == waiting // for a restart; this worker ended by itself before our signal reached it
	fatal := e.Status != 0 && p.final(e) != ""
	switch {
	case p.succeeded() && (!stopping || p.rules.Policy != job.RestartAlways):
		return p.success(e.At, len(p.statuses) == p.world)
	case stopping && fatal:
		return p.failure(e, p.final(e))
	case stopping:
		return none
	case (fatal || p.failed(e) || p.held) && p.EchoesOnly(e.At):
		p.held = true
		return Decision{Verdict: Hold, Rank: -1}
	case fatal || p.failed(e) || p.held:
		return p.judge(e.At)
	case len(p.statuses) < p.local:
		return none
	case p.local < p.world:
		return Decision{Verdict: Tally, Rank: -1}
	case p.rules.Success == job.QuorumNone:
		return p.success(e.At, true)
	default: // all have ended, and neither policy was met
		return p.retry(e.At, p.failures[0], p.scope())
	}
}

// final returns why no restart follows a failure whatever the limits are, "" where one may.
func (p *Policy) final(e Event) job.Reason {
	switch {
	case p.rules.Fatal.Has(e.Status):
		return job.ReasonFatal
	case e.Hopeless:
		return job.ReasonWorkerFailed
	}
	return ""
}

// EchoesOnly reports whether all failures so far may be the echo of one on another node that will be heard of. One that
// was borne long before now explains no connection that breaks now.
func (p *Policy) EchoesOnly(now time.Time) bool {
	return p.state == running && p.local < p.world && p.scope() == Restart &&
		!slices.ContainsFunc(p.failures, func(f Event) bool { return !f.Echo && now.Sub(f.At) <= job.RootCauseWindow })
}

// judge decides for failures that meet the fail policy or are fatal.
func (p *Policy) judge(now time.Time) Decision {
	p.held = false
	first := func(is func(Event) bool) int { return slices.IndexFunc(p.failures, is) }
	if i := first(func(f Event) bool { return p.final(f) != "" }); i >= 0 {
		return p.failure(p.failures[i], p.final(p.failures[i]))
	}
	decides := first(func(f Event) bool { return !f.Echo })
	if p.rules.Fail == job.QuorumRank0 {
		decides = first(func(f Event) bool { return f.Rank == 0 }) // those before it were borne
	}
	return p.retry(now, p.failures[max(decides, 0)], p.scope())
}

// Tallied counts the workers here that have ended.
func (p *Policy) Tallied() rendezvous.Tally {
	return rendezvous.Tally{Ended: len(p.statuses), Failed: len(p.failures)}
}

// everybodyEnded decides for a world whose workers have all ended without meeting a policy on any node.
func (p *Policy) everybodyEnded(e Event) Decision {
	switch {
	case p.state != running:
		return Decision{Rank: -1}
	case e.Failed == 0 || p.rules.Success == job.QuorumNone:
		return p.success(e.At, true)
	case e.Rank < 0 && len(p.failures) > 0:
		e.Rank, e.Status = p.failures[0].Rank, p.failures[0].Status
	}
	return p.retry(e.At, e, Restart)
}

// succeeded reports whether the exits so far meet the success policy.
func (p *Policy) succeeded() bool {
	switch p.rules.Success {
	case job.QuorumNone:
		return false // decided when all have ended
	case job.QuorumAny:
		return len(p.statuses) > len(p.failures)
	case job.QuorumRank0:
		status, ended := p.statuses[0]
		return ended && status == 0
	default:
		return len(p.statuses) == p.world && len(p.failures) == 0
	}
}

// failed reports whether the exits so far, of which e is the last, meet the fail policy.
func (p *Policy) failed(e Event) bool {
	switch p.rules.Fail {
	case job.QuorumNone:
		return false
	case job.QuorumAll:
		return len(p.failures) == p.world
	case job.QuorumRank0:
		return e.Rank == 0 && e.Status != 0
	default:
		return e.Status != 0
	}
}

// success ends the job, or under RestartAlways starts the group again while the limits allow it: restarts of any cause
// count. all says that no worker runs any more.
func (p *Policy) success(now time.Time, all bool) Decision {
	if p.rules.Policy == job.RestartAlways && p.overLimit(now) == "" {
		p.idle = 0
		return p.again(now, Decision{Verdict: Restart, Reason: job.ReasonFinished, Rank: -1})
	}
	d := Decision{Verdict: Succeed, Reason: job.ReasonSucceeded, Rank: -1}
	if all {
		p.state = decided
		return d
	}
	p.state, d.Linger = lingering, p.rules.Linger
	return d
}

// scope is who starts anew after a failure on this node. A node that is alone is the world, whose store is emptied.
func (p *Policy) scope() Verdict {
	switch {
	case p.rules.Scope == job.ScopeProcess:
		return RestartWorker
	case p.rules.Scope == job.ScopeNode && p.local < p.world:
		return RestartNode
	}
	return Restart
}

// retry decides between a restart and the end, for a round that has failed by the failure e.
func (p *Policy) retry(now time.Time, e Event, how Verdict) Decision {
	if !p.restartable(e.Status) {
		return p.failure(e, job.ReasonWorkerFailed)
	}
	excludes := e.Exclude.Any() && p.inLoop(e)
	if d, is := p.looping(e); is && !excludes {
		return d
	}
	if why := p.overLimit(now); why != "" {
		return p.failure(e, why)
	}
	d := Decision{Verdict: how, Reason: job.ReasonWorkerFailed, Rank: e.Rank, Status: e.Status}
	if excludes {
		p.idle, d.Verdict, d.Exclude = 0, Restart, e.Exclude
	}
	p.idle++
	return p.again(now, d)
}

func (p *Policy) failure(e Event, why job.Reason) Decision {
	p.state = decided
	return Decision{Verdict: Fail, Reason: why, Rank: e.Rank, Status: e.Status}
}

// restartable reports whether the restart policy wants a failure with this status restarted.
func (p *Policy) restartable(status int) bool {
	switch p.rules.Policy {
	case job.RestartOnFailure, job.RestartAlways:
		return true
	case job.RestartExitCode, job.RestartOnNodeFailOrExitCode:
		return p.rules.Retryable.Has(status)
	default:
		return false
	}
}

func dropWhile(times []time.Time, drop func(time.Time) bool) []time.Time {
	for len(times) > 0 && drop(times[0]) {
		times = times[1:]
	}
	return times
}

// again completes d, a restart because of this node, and counts it.
func (p *Policy) again(now time.Time, d Decision) Decision {
	p.heal(now)
	d.Delay = p.delay()
	p.inARow++
	p.own = append(p.own, now)
	p.learn(now, 1)
	if d.Verdict == Restart {
		p.restarts++
		p.state, d.Restarts = waiting, p.restarts
		return d
	}
	p.here++
	d.Restarts = p.restarts + p.here
	p.before = p.counts // no other node has a say in it
	if d.Verdict == RestartNode {
		p.state = waiting
		return d
	}
	delete(p.statuses, d.Rank)
	p.failures = slices.DeleteFunc(p.failures, func(f Event) bool { return f.Rank == d.Rank })
	return d
}

// healthy is how many times as long as the pause that is due a group has to run to have none: pauses cost a tenth of
// the time at most.
const healthy = 10

// heal forgets a row of restarts after a group that ran healthy: for a Window, or for long beside the pause that is
// due.
func (p *Policy) heal(now time.Time) {
	ran := now.Sub(p.started)
	if p.rules.Window > 0 && ran >= p.rules.Window || p.due() <= float64(ran/healthy) {
		p.inARow = 0
	}
}

// follow does what counts for all nodes, whatever was decided here. It may be told more than once in a round.
func (p *Policy) follow(e Event) Decision {
	p.counts, p.held = p.before, false
	d := DecisionOf(e.Said)
	switch d.Verdict {
	case Restart:
		p.heal(e.At)
		p.inARow++
		if e.Further || d.Exclude.Any() {
			p.idle = 0
		}
		p.idle++
		p.learn(e.At, 1)
		if e.Own {
			p.own = append(p.own, e.At)
		}
		p.restarts = max(p.restarts+1, e.Said.Restarts)
		p.state, d.Restarts = waiting, p.restarts
	case Reassemble:
		p.state, d.Restarts = waiting, p.restarts
	case Succeed:
		p.state = decided
		if d.Linger > 0 {
			p.state = lingering
		}
	default:
		p.state = decided
	}
	return d
}

// FailedHere reports whether a worker of this node failed in the last round, and not because of another one.
func (p *Policy) FailedHere() bool {
	return slices.ContainsFunc(p.failures, func(f Event) bool { return !f.Echo })
}

package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/launch/warm"
	"muster/rendezvous"
)

// meeting is a round that the agent takes part in.
type meeting struct {
	rendezvous.Round
	// began is when this node had the round. Nodes' clocks differ, but what happened to them after this moment can be
	// compared.
	began time.Time
	// verdicts brings how the round ends; nil where nobody else decides, and when it has said all.
	verdicts <-chan rendezvous.Verdict
	// rest takes the place of verdicts when what that holds was heard.
	rest <-chan rendezvous.Verdict
	// verdict is how the round ends for all, nil until that is known; own says that this node proposed it. known are
	// that one and those that it took the place of.
	verdict *rendezvous.Verdict
	own     bool
	known   []rendezvous.Verdict
	// reported says that the other nodes have been told of the failures here.
	reported bool
	// checked says that this node knows which nodes the check of the round has excluded.
	checked bool
	lease   *lease
	// heldUp is the rank that workers here have waited for in vain, nil for none that is known; soughtHeldUp says that it
	// was looked for.
	heldUp       *report.HeldUp
	soughtHeldUp bool
	// expel is the node that has to leave before workers start, expelMe says that it is this one, expelFrom how many nodes
	// there were when it was last there.
	expel     rendezvous.Expulsion
	expelMe   bool
	expelFrom int
}

// alone reports whether no other node takes part.
func (m *meeting) alone() bool { return m.GroupWorldSize <= 1 }

// decided reports whether the job has ended with the round, as far as this node knows.
func (m *meeting) decided() bool {
	return m.verdict != nil && (m.verdict.Kind == rendezvous.Succeed || m.verdict.Kind == rendezvous.Fail)
}

// bound takes the Grace of a verdict that comes when the job is decided: all else changes nothing any more.
func (m *meeting) bound(v rendezvous.Verdict) {
	decided := *m.verdict
	if v.Grace > 0 {
		decided.Grace = v.Grace
	}
	m.verdict = &decided
}

// learn takes a verdict that was not known.
func (m *meeting) learn(v rendezvous.Verdict, own bool) {
	m.verdict, m.own, m.known = &v, own, append(m.known, v)
}

// rounds runs one round after the other until the job is decided.
func (a *Agent) rounds(ctx context.Context) (Result, error) {
	a.guardDoor()
	a.keepPairs()
	for {
		if res, err := a.meet(ctx); res != nil || err != nil {
			return orEmpty(res), err
		}
		run := a.round
		if a.meeting.Orders.Paused {
			run = a.paused
		}
		if res, err := run(ctx); res != nil || err != nil {
			return orEmpty(res), err
		}
	}
}

// round runs the workers of the round that the agent has. It returns nothing where another round follows.
func (a *Agent) round(ctx context.Context) (*Result, error) {
	defer a.keepLease()()
	defer a.Steering.take(ctx, a.meeting.Round)()
	if d, err := a.check(ctx); err != nil {
		return nil, err
	} else if d != nil {
		return a.turnedAway(ctx, *d)
	}
	for again := false; ; again = true {
		if d, err := a.pauseFirst(ctx); err != nil || d.Verdict != policy.CarryOn {
			return a.withoutWorkers(ctx, d), err
		}
		g, err := a.startRound(ctx, again)
		if err != nil {
			return nil, err
		}
		d, err := a.watch(ctx, g)
		a.suspect = a.suspect || d.Verdict == policy.RestartNode
		if err == nil && d.StartsAgain() {
			d, err = a.endRound(ctx, g, d)
		}
		switch {
		case err != nil:
			return nil, a.abandon(ctx, g, err)
		case !d.StartsAgain():
			res, err := a.conclude(ctx, g, d)
			return &res, err
		case d.Verdict != policy.RestartNode:
			a.suspect = a.suspect || a.policy.FailedHere()
			return nil, nil //nolint:nilnil // see above
		}
	}
}

func orEmpty(res *Result) Result {
	if res == nil {
		return Result{}
	}
	return *res
}

// abandon ends the workers of a job that cannot be run any more because of err.
func (a *Agent) abandon(ctx context.Context, g *WorkerGroup, err error) error {
	if _, left := errors.AsType[*proc.LeftError](err); left {
		return err // that was tried
	}
	return errors.Join(err, a.stopGroup(context.WithoutCancel(ctx), g, a.ladder(syscall.SIGTERM), restartPatience))
}

// meet waits for the next round. It returns a result where the job ends meanwhile, for this node or for all.
func (a *Agent) meet(ctx context.Context) (*Result, error) {
	var before *rendezvous.Round
	last := a.meeting
	if last != nil {
		before = &last.Round
	}
	if last == nil { // nobody waits for this node yet
		if d := a.siteHealth(ctx, 0); d != nil {
			res := a.finish(ctx, report.Outcome{Reason: d.Reason}, *d)
			return &res, nil
		}
	}
	restarts := a.policy.Restarts()
	began := time.Now()
	met := a.Steering.meets()
	waiting, done := a.untilDeadline(ctx)
	defer done()
	if a.unfit != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(waiting, leavePatience)
		defer cancel()
	}
	round, err := a.Handler.Next(waiting, rendezvous.Member{Role: a.Plan.Job.Role, LocalWorldSize: a.Plan.Procs})
	met()
	a.LogTo(a.logs.Message())
	if err != nil {
		if a.atDoor != nil && ctx.Err() == nil {
			res := a.finish(ctx, report.Outcome{Reason: a.atDoor.Reason}, *a.atDoor)
			return &res, nil
		}
		if res := a.unfitForPairs(ctx, err); res != nil {
			return res, nil
		}
		if res := a.unfitLeaves(ctx); res != nil {
			return res, nil
		}
		return a.notMet(ctx, waiting, err)
	}
	a.meeting = &meeting{Round: round, began: time.Now(), verdicts: round.Verdict()}
	if last != nil {
		a.meeting.expels(last)
	}
	a.Steering.completed(round, time.Since(began))
	a.Steering.otherNodes(last, round)
	a.tellOtherPort(round)
	a.beside.follow(ctx, round.GroupRank == 0)
	a.events.Joined(before, restarts, time.Since(began))
	if err := a.entered(ctx); err != nil {
		return nil, err
	}
	if a.begun.IsZero() && !round.Orders.Paused {
		a.begun = time.Now()
	}
	return nil, nil //nolint:nilnil // the round is there
}

// tellOtherPort says that the workers' store has another port than was asked for. Where any node may have rank 0, no
// round fails because the port is taken there; the node that has it tells.
func (a *Agent) tellOtherPort(r rendezvous.Round) {
	asked, ports := a.Plan.Job.Sources["master-port"], a.Plan.Job.Meeting.WorkerPorts
	if r.GroupRank != 0 || len(ports) == 0 || asked.Kind == job.FromDefault || slices.Contains(ports, r.MasterPort) {
		return
	}
	a.Log.Warn().Int("port", ports[0]).Str("source", asked.String()).Str("node", a.Plan.Hostname).Int("instead", r.MasterPort).
		Str("hint", "a job of fixed size is refused where the port is taken: --nnodes N").
		Msg("the workers' store cannot have the port that was asked for on the node with rank 0: it has another one")
}

// notMet says how the job ends on a node that got no round.
func (a *Agent) notMet(ctx, waiting context.Context, err error) (*Result, error) {
	d := policy.Decision{Rank: -1}
	over, ended := errors.AsType[*rendezvous.OverError](err)
	switch {
	case ended:
		d = policy.DecisionOf(over.Verdict)
		if d.Verdict == policy.Succeed {
			level := zerolog.WarnLevel // its workers have never run
			if a.meeting != nil || a.Plan.Job.Meeting.Spares > 0 {
				level = zerolog.InfoLevel
			}
			a.Log.WithLevel(level).Str("reason", string(d.Reason)).Msg("the job has succeeded without this node")
		} else {
			d.Verdict = policy.Fail
		}
	case ctx.Err() != nil:
		TellStopped(&a.Plan.Job, context.Cause(ctx), &a.Log)
		d.Verdict, d.Reason = policy.StopForNow, job.ReasonStopped
	case waiting.Err() != nil:
		d.Verdict, d.Reason = policy.Fail, job.ReasonDeadline
	default:
		return nil, fmt.Errorf("cannot take part in a round: %w", err)
	}
	o := report.Outcome{Reason: d.Reason}
	if a.group != nil {
		o.Exits = a.group.exits() // of the round before: none of them is left
	}
	res := a.finish(ctx, o, d)
	return &res, nil
}

// startRound starts the workers of the round, again in the same round where this node's group alone was restarted.
func (a *Agent) startRound(ctx context.Context, again bool) (*WorkerGroup, error) {
	m := a.meeting
	restarts := max(a.policy.Restarts(), m.Restarts)
	if again { // in a new round all nodes must count alike: PyTorch up to 2.5 makes it part of the keys workers meet under
		restarts += a.policy.RestartsHere()
	}
	a.status.Writes(a.whereLogs())
	a.status.Creating(m.Round, restarts, net.JoinHostPort(m.MasterAddr, strconv.Itoa(m.MasterPort)))
	starting, started := a.untilDeadline(ctx)
	defer started()
	template := a.takeTemplate(starting)
	if m.rest != nil {
		started() // the round is over: nobody is to be started any more
	}
	if a.Steering.wished() == nil {
		a.untilVerdict(starting, func(ctx context.Context) { a.beginCheckpoints(ctx, again) })
	} else {
		started()
	}
	release, err := a.choosePlaces(starting, again)
	if err != nil {
		return nil, err
	}
	a.dropSignals()
	oomKills, _, _ := proc.OOMKills() // without a count there is no evidence, and the job runs all the same
	a.groupMu.Lock()
	if release != nil {
		release()
	} else {
		started()
	}
	g, err := a.startGroup(starting, m.Round, restarts, template)
	a.group = g
	a.groupMu.Unlock()
	if err != nil {
		return nil, err
	}
	a.oomKills = oomKills
	for _, w := range g.workers {
		a.events.Started(w.named(), &m.Round, restarts)
	}
	a.status.Running()
	more := a.policy.RestartsLeft() || m.verdicts != nil
	a.warm.Prepare(a.Plan.Procs, more, g.forked()) //nolint:contextcheck // what it starts outlives the round: it ends with the job
	return g, nil
}

// dropSignals takes back the signals for workers that came while none ran: while the last ones were being stopped,
// during a pause, in the waiting for the other nodes or for the template. They were meant for workers that have gone,
// and the next ones, which have no handlers yet, would die of them.
func (a *Agent) dropSignals() {
	for {
		select {
		case s := <-a.Forward:
			a.Log.Debug().Str("signal", proc.SignalName(s)).Msg("signal not forwarded: no worker runs")
		default:
			return
		}
	}
}

// takeTemplate waits for the template of warm starts, but no longer than the round lasts.
func (a *Agent) takeTemplate(ctx context.Context) (t *warm.Template) {
	if a.warm == nil {
		return nil
	}
	a.untilPause(ctx, func(ctx context.Context) { t = a.warm.Take(ctx) })
	return t
}

// leaveTime bounds what a node that leaves does for the others.
const leaveTime = 5 * time.Second

// settle proposes a decision that ends the round, and returns the one that counts on every node. A signal to muster and
// the deadline end this node's part whatever the others say.
func (a *Agent) settle(ctx context.Context, d policy.Decision) (policy.Decision, error) {
	m := a.meeting
	if !d.Final() && d.Verdict != policy.Restart && d.Verdict != policy.Reassemble {
		return d, nil
	}
	if d.Verdict == policy.Succeed && m.verdict != nil && m.verdict.Kind == rendezvous.Succeed {
		return d, nil // it lingers no longer
	}
	v := d.Proposal(a.Plan.Hostname)
	leaving := d.Leaves() || d.Stops() || d.Reason == job.ReasonDeadline
	bounded := ctx
	if leaving {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
	}
	if s := signalOf(ctx); d.Verdict == policy.StopForNow {
		v.Message = fmt.Sprintf("node %s was stopped by %s", a.Plan.Hostname, proc.SignalName(s))
	}
	said, err := a.meeting.Propose(bounded, v)
	switch {
	case err != nil && leaving:
		a.Log.Warn().Err(err).Msg("the other nodes could not be told")
		return d, nil
	case err != nil && ctx.Err() != nil:
		return a.settle(ctx, a.policy.Step(a.stopEvent(ctx, policy.NotAgreed))) // a signal came meanwhile
	case err != nil:
		return d, fmt.Errorf("cannot agree with the other nodes on how the round ends: %w", err)
	}
	// The answer is the first verdict again where the handler has said a later one: that one counts.
	switch {
	case slices.Contains(m.known, said):
	case m.decided():
		m.bound(said)
	default:
		m.learn(said, said == v)
	}
	if *m.verdict == v && d.Verdict != policy.Reassemble || leaving && (d.Verdict == policy.StopForNow || !m.decided()) {
		return d, nil
	}
	return a.follow(ctx), nil
}

// follow tells the policy what counts on every node.
func (a *Agent) follow(ctx context.Context) policy.Decision {
	a.rememberExcluded()
	a.Steering.changedNodes(*a.meeting.verdict)
	return a.surplus(a.policy.Step(policy.Event{
		Kind: policy.VerdictHeard, At: time.Now(), Said: *a.meeting.verdict, Own: a.meeting.own,
		Further: a.meeting.verdict.Kind != rendezvous.Restart || a.further(context.WithoutCancel(ctx)), // it bounds itself
	}))
}

// hear takes what the handler says about how the round ends; ok is false when it will say no more. What is known
// already changes nothing, and neither does a change of the nodes once the job is decided: only its Grace counts then.
func (a *Agent) hear(ctx context.Context, v rendezvous.Verdict, ok bool) policy.Decision {
	m, none := a.meeting, policy.Decision{Rank: -1}
	if m.rest != nil {
		m.verdicts, m.rest = m.rest, nil
	}
	if !ok {
		m.verdicts = nil
		return none
	}
	if slices.Contains(m.known, v) {
		return none
	}
	if m.decided() {
		m.bound(v)
		return none
	}
	if m.verdict != nil {
		a.policy.Keep() // the restart that was agreed on is a restart, whatever keeps this node from it
	}
	m.learn(v, false)
	return a.follow(ctx)
}

// stopSignal is the signal by which a job ends that somebody has stopped: the one that ended ctx, else that of the node
// which has decided so.
func (a *Agent) stopSignal(ctx context.Context, d policy.Decision) syscall.Signal {
	heard := syscall.Signal(d.Status - errhint.FromSignal(0))
	if ctx.Err() == nil && d.Stops() && slices.Contains(a.Plan.Job.Stop.Handled, heard) {
		return heard
	}
	return signalOf(ctx)
}

// signalOf is the signal that ended ctx, SIGTERM where none did.
func signalOf(ctx context.Context) syscall.Signal {
	if s, ok := errors.AsType[*SignalError](context.Cause(ctx)); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}

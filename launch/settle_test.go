package launch

import (
	"context"
	"syscall"
	"testing"
	"time"

	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/rendezvous"
)

// firstCounts answers every proposal with the first.
type firstCounts struct {
	rendezvous.Exchange
	first *rendezvous.Verdict
}

func (h *firstCounts) Propose(_ context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	if h.first == nil {
		h.first = &v
	}
	return *h.first, nil
}

// A restart was agreed on, then the handler says that a node was lost, then a worker is seen that had failed fatally
// before it was stopped: the restart is still one.
func TestRestartCountedOnce(t *testing.T) {
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, MaxRestarts: 9, BackoffLimit: 2, Success: job.QuorumAll, Fail: job.QuorumAny,
		Delay: time.Second, DelayFactor: 2,
	}
	var err error
	if rules.Fatal, err = job.ParseExitCodes("3"); err != nil {
		t.Fatal(err)
	}
	h := &firstCounts{}
	a := &Agent{
		Plan:   &plan.Plan{Hostname: "node-0", Job: job.Job{Restart: rules}},
		policy: policy.New(rules, 2, func() float64 { return 0 }),
	}
	a.meeting = &meeting{Round: rendezvous.Round{GroupWorldSize: 3, WorldSize: 6, Exchange: h}}
	now := time.Now()
	a.policy.Step(policy.Event{Kind: policy.GroupStarted, At: now, World: 6})
	d, err := a.settle(t.Context(), a.policy.Step(policy.Event{Kind: policy.WorkerExited, At: now, Rank: 0, Status: 1}))
	if err != nil || d.Verdict != policy.Restart || d.Restarts != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	if d = a.hear(t.Context(), rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1},
		true); d.Verdict != policy.Reassemble ||
		d.Restarts != 1 {
		t.Fatalf("%+v", d)
	}
	d, err = a.settle(t.Context(), a.policy.Step(policy.Event{Kind: policy.WorkerExited, At: now, Rank: 1, Status: 3}))
	if err != nil || a.policy.Restarts() != 1 || d.Verdict != policy.Reassemble {
		t.Errorf("decision %+v, %v, restarts %d", d, err, a.policy.Restarts())
	}
	// Neither the limit of the whole job nor the pause has counted it twice.
	a.policy.Step(policy.Event{Kind: policy.GroupStarted, At: now, World: 6, Restarts: 1})
	if d = a.policy.Step(policy.Event{Kind: policy.WorkerExited, At: now, Rank: 0, Status: 1}); d.Verdict != policy.Restart ||
		d.Restarts != 2 || d.Delay != time.Second {
		t.Errorf("the next failure: %+v", d)
	}
}

type outOfReach struct{ rendezvous.Exchange }

func (outOfReach) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	return v, ctx.Err()
}

// What could not be agreed on because a signal came is no end of the job: not a success, and no failure about which the
// others, who were told nothing, are waited for (conclude gathers their reports for Grace + 5 s).
func TestNotAgreed(t *testing.T) {
	for status, ended := range map[int]policy.Verdict{0: policy.Succeed, 143: policy.Fail} {
		rules := job.RestartRules{Policy: job.RestartOnFailure, BackoffLimit: -1, Success: job.QuorumRank0, Fail: job.QuorumAny}
		a := &Agent{
			Plan:   &plan.Plan{Hostname: "node-0", Job: job.Job{Restart: rules}},
			policy: policy.New(rules, 2, func() float64 { return 0 }),
		}
		a.meeting = &meeting{Round: rendezvous.Round{GroupWorldSize: 2, WorldSize: 4, Exchange: outOfReach{}}}
		a.policy.Step(policy.Event{Kind: policy.GroupStarted, At: time.Now(), World: 4})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&SignalError{Signal: syscall.SIGTERM})
		d, err := a.settle(ctx, a.policy.Step(policy.Event{Kind: policy.WorkerExited, At: time.Now(), Rank: 0, Status: status}))
		if err != nil || d.Verdict == ended {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

package launch

import (
	"context"
	"syscall"
	"testing"
	"time"

	"muster/launch/job"
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
	rules := job.RestartRules{Policy: job.RestartOnFailure, MaxRestarts: 9, BackoffLimit: -1, Success: job.QuorumAll, Fail: job.QuorumAny, Delay: time.Second, DelayFactor: 1}
	var err error
	if rules.Fatal, err = job.ParseExitCodes("3"); err != nil {
		t.Fatal(err)
	}
	h := &firstCounts{}
	a := &Agent{Plan: &Plan{Hostname: "node-0", Job: job.Job{Restart: rules}}, policy: newPolicy(rules, 2, func() float64 { return 0 })}
	a.meeting = &meeting{Round: rendezvous.Round{GroupWorldSize: 3, WorldSize: 6, Exchange: h}}
	now := time.Now()
	a.policy.step(event{Kind: groupStarted, At: now, World: 6})
	d, err := a.settle(t.Context(), a.policy.step(event{Kind: workerExited, At: now, Rank: 0, Status: 1}))
	if err != nil || d.Verdict != restart || d.Restarts != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	if d = a.hear(rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1}, true); d.Verdict != reassemble || d.Restarts != 1 {
		t.Fatalf("%+v", d)
	}
	d, err = a.settle(t.Context(), a.policy.step(event{Kind: workerExited, At: now, Rank: 1, Status: 3}))
	if err != nil || a.policy.restarts != 1 || len(a.policy.job) != 1 || a.policy.inARow != 1 || d.Verdict != reassemble {
		t.Errorf("decision %+v, restarts %d, of the job %d, in a row %d", d, a.policy.restarts, len(a.policy.job), a.policy.inARow)
	}
}

type outOfReach struct{ rendezvous.Exchange }

func (outOfReach) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	return v, ctx.Err()
}

// What could not be agreed on because a signal came is no end of the job: not a success, and no failure about which the
// others, who were told nothing, are waited for (conclude gathers their reports for Grace + 5 s).
func TestNotAgreed(t *testing.T) {
	for status, ended := range map[int]verdict{0: succeed, 143: fail} {
		rules := job.RestartRules{Policy: job.RestartOnFailure, BackoffLimit: -1, Success: job.QuorumRank0, Fail: job.QuorumAny}
		a := &Agent{Plan: &Plan{Hostname: "node-0", Job: job.Job{Restart: rules}}, policy: newPolicy(rules, 2, func() float64 { return 0 })}
		a.meeting = &meeting{Round: rendezvous.Round{GroupWorldSize: 2, WorldSize: 4, Exchange: outOfReach{}}}
		a.policy.step(event{Kind: groupStarted, At: time.Now(), World: 4})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&SignalError{Signal: syscall.SIGTERM})
		d, err := a.settle(ctx, a.policy.step(event{Kind: workerExited, At: time.Now(), Rank: 0, Status: status}))
		if err != nil || d.Verdict == ended {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

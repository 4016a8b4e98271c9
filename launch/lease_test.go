package launch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/rendezvous"
)

// lostExchange is the Exchange of a node that has lost the store after the job was decided.
type lostExchange struct {
	rendezvous.Exchange
}

func (lostExchange) Propose(context.Context, rendezvous.Verdict) (rendezvous.Verdict, error) {
	return rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: "StoreLost", Rank: -1, Message: "the store does not answer for 4s",
		Grace: time.Second / 2,
	}, nil
}

func lingeringAgent(x rendezvous.Exchange) *Agent {
	rules := job.RestartRules{
		Policy: job.RestartOnFailure, BackoffLimit: -1, Success: job.QuorumRank0, Fail: job.QuorumAny,
		Linger: time.Minute,
	}
	p := policy.New(rules, 1, func() float64 { return 0 })
	p.Step(policy.Event{Kind: policy.GroupStarted, At: time.Now(), World: 3})
	m := &meeting{Round: rendezvous.Round{GroupWorldSize: 3, WorldSize: 3, Exchange: x}}
	said := rendezvous.Verdict{
		Kind: rendezvous.Succeed, Reason: string(job.ReasonSucceeded), Rank: -1, Linger: time.Minute,
		Message: "the workers succeeded",
	}
	m.learn(said, false)
	a := &Agent{Plan: &plan.Plan{Hostname: "node-1"}, policy: p, meeting: m}
	if d := a.follow(context.Background()); d.Verdict != policy.Succeed ||
		p.Step(policy.Event{Kind: policy.WorkerExited, At: time.Now(), Status: 1}).Verdict != policy.CarryOn {
		panic(d)
	}
	return a
}

var leaseOver = policy.Decision{
	Verdict: policy.Reassemble, Reason: job.ReasonLeaseOver, Rank: -1,
	Text: "node node-1 was not heard of for too long, and its workers were killed",
}

// TestLeaseOverWhileLingering: what has been decided is not undone by a store that is lost.
func TestLeaseOverWhileLingering(t *testing.T) {
	a := lingeringAgent(lostExchange{})
	d, err := a.settle(t.Context(), leaseOver)
	if err != nil || d.Verdict != policy.Succeed || a.meeting.verdict.Kind != rendezvous.Succeed {
		t.Errorf("the job has succeeded, and lingers; its lease ends, and the store is lost: decision %+v, %v; verdict now %+v", d, err,
			*a.meeting.verdict)
	}
}

// TestNoStartAfterLease: the lease of a node ends while none of its workers runs: the only one has failed, and waits
// for its restart.
func TestNoStartAfterLease(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $MUSTER_ROUND = 1 && exit 0
test $RANK$TORCHELASTIC_RESTART_COUNT = 10 && exit 4
test $RANK$TORCHELASTIC_RESTART_COUNT = 11 && exit 4
test $RANK = 1 && date +%s.%N > $ALL/again
exec sleep 100`, func(i int, n *testNode) {
		n.Procs, n.Restart.Scope, n.Restart.MaxRestarts, n.Restart.Delay = 1, job.ScopeProcess, 3, 8*time.Second
		n.Restart.DelayFactor = 1
		if i == 1 {
			n.Lease, n.Alone = time.Second, true
		}
	})
	testutil.Eventually(t, time.Minute, "the other node hears of it", func() bool {
		return strings.Contains(c.nodes[0].log.String(), "node node-1 was not heard of for too long")
	})
	c.ends(0, 0)
	if _, err := os.Stat(filepath.Join(c.dir, "again")); err == nil {
		t.Error("a worker was started after the lease was over")
	}
}

// TestLeaseOfRestartedNode: a group that is started again in the same round (scope node) has the lease of the first
// one.
func TestLeaseOfRestartedNode(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $MUSTER_ROUND = 1 && exit 0
test $RANK$TORCHELASTIC_RESTART_COUNT = 10 && exit 4
exec sleep 100`, func(i int, n *testNode) {
		n.Procs, n.Restart.Scope, n.Restart.MaxRestarts, n.Restart.Delay = 1, job.ScopeNode, 3, time.Millisecond
		if i == 1 {
			n.Lease, n.Alone = 3*time.Second, true
		}
	})
	testutil.Eventually(t, time.Minute, "the workers of the second group are killed", func() bool {
		return strings.Contains(c.nodes[1].log.String(), "its workers are killed")
	})
	c.ends(0, 0)
}

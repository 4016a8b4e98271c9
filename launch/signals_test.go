package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/rendezvous"
)

// A batch system's signal reaches muster and the workers at once: a node whose worker's end is seen first does not wait
// for what the others, who were told nothing, say about it.
func TestSignalToEverybody(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := startAgents(t, 2, `echo $$ > $ALL/pid.$RANK.new; mv $ALL/pid.$RANK.new $ALL/pid.$RANK; `+see+`exec sleep 100`,
				func(_ int, n *testNode) { n.Procs, n.Grace = 1, 10*time.Second })
			c.lines(2)
			text, _ := os.ReadFile(filepath.Join(c.dir, "pid.0"))
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			agent := c.nodes[0].cmd.Process
			began := time.Now()
			_ = agent.Signal(syscall.SIGSTOP) // a busy machine
			time.Sleep(50 * time.Millisecond)
			_ = syscall.Kill(pid, syscall.SIGTERM)
			_ = agent.Signal(syscall.SIGTERM)
			time.Sleep(50 * time.Millisecond)
			_ = agent.Signal(syscall.SIGCONT)
			r := c.wait(0)
			if d := time.Since(began); d > 5*time.Second {
				t.Fatalf("status %d %q after %v", r.Status, r.Err, d)
			}
		})
	}
}

// TestSignalWhileNobodyRuns: a signal for workers that comes between two rounds is for none of them. The next ones die
// of it, or take it for word of a preemption.
func TestSignalWhileNobodyRuns(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, `trap "exit 9" USR1; trap "exit 0" USR2; `+see+`while :; do sleep 0.05; done`, nil)
	c.lines(4)
	_ = c.nodes[1].cmd.Process.Kill()
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Message: "node-1 is lost", Rank: -1})
	testutil.Eventually(t, time.Minute, "waits for the next round", func() bool {
		text, err := c.store.CompareAndSet(t.Context(), "r1/node/0", []byte("?"), []byte("?"))
		return err == nil && strings.Contains(string(text), "LocalWorldSize")
	})
	_ = c.nodes[0].cmd.Process.Signal(syscall.SIGUSR1)
	testutil.Eventually(t, time.Minute, "the agent has the signal", func() bool {
		_, err := os.Stat(c.nodes[0].path("received"))
		return err == nil
	})
	if err := c.store.Set(t.Context(), "r1/node/1", []byte("left")); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "workers of the second round", func() bool {
		text, _ := os.ReadFile(filepath.Join(c.dir, "seen"))
		return strings.Count(string(text), "round 1") == 2
	})
	_ = c.nodes[0].cmd.Process.Signal(syscall.SIGUSR2) // behind the first
	c.ends(0)
	c.nodes[0].wantLog(t, `"level":"debug"`, "signal not forwarded", "SIGUSR1")
}

// TestSignalToAllNodes: a signal that has gone to all nodes ends the job, another one this node's part; a node that hears
// of it from another one first ends by the same signal.
func TestSignalToAllNodes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&SignalError{Signal: syscall.SIGINT})
	heard := policy.DecisionOf(rendezvous.Verdict{Kind: rendezvous.Fail, Reason: string(job.ReasonStopped), Rank: -1, Status: 130})
	for _, whole := range []bool{false, true} {
		p := &plan.Plan{Job: job.Job{Stop: job.StopRules{Handled: []syscall.Signal{syscall.SIGINT}}}}
		a := &Agent{Plan: p, WholeJob: func() bool { return whole }}
		if e := a.stopEvent(ctx, policy.StopRequested); e.Everywhere != whole || e.Status != 130 {
			t.Errorf("to all nodes: %v, event: %+v", whole, e)
		}
		if s := a.stopSignal(t.Context(), heard); s != syscall.SIGINT {
			t.Errorf("who hears of it ends by %v", s)
		}
		heard := heard
		heard.Status = 137
		if s := a.stopSignal(t.Context(), heard); s != syscall.SIGTERM { // no job ends by SIGKILL
			t.Errorf("who hears of a signal that is not handled ends by %v", s)
		}
	}
}

package launch

import (
	"context"
	"errors"
	"syscall"
	"time"

	"muster/launch/policy"
	"muster/launch/report"
	"muster/launch/warm"
)

// endWorker ends what a failed worker has left behind, and has the worker started again, alone, after its delay:
// RestartRules.Scope process. All others go on.
func (a *Agent) endWorker(ctx context.Context, g *WorkerGroup, d policy.Decision) error {
	local := d.Rank - g.round.BaseRank
	w := g.workers[local]
	a.Log.Warn().Str("reason", d.Cause()).Int("rank", d.Rank).Int("restart_count", d.Restarts).
		Int("max_restarts", a.Plan.Job.Restart.MaxRestarts).Dur("delay_ms", d.Delay).Msg("restarting the worker alone")
	kernel := a.evidence()
	g.delays = append(g.delays, time.AfterFunc(d.Delay, func() { g.again <- local })) // it has room for each worker once
	a.status.RestartingWorker(d.Restarts, why(d))
	// A verdict ends the patience with what the worker has left: the others may be on a node that is given up.
	var err error
	a.untilVerdict(context.WithoutCancel(ctx), func(ctx context.Context) {
		err = a.tree.Stop(ctx, a.ladder(syscall.SIGTERM), w.proc)
	})
	if err != nil {
		return errors.Join(err, a.stopGroup(context.WithoutCancel(ctx), g, a.ladder(syscall.SIGTERM), restartPatience))
	}
	shown, cancel := context.WithTimeout(ctx, restartPatience)
	defer cancel()
	w.logs.Finish(shown)
	in := a.failureInput([]report.Exit{w.exit()}, kernel, -1)
	if r := report.New(*in); r != nil {
		a.tell(r, d)
	}
	g.restarts = d.Restarts
	return nil
}

// startWorkerAgain starts a worker in the place of the one that failed.
func (a *Agent) startWorkerAgain(ctx context.Context, g *WorkerGroup, local int) error {
	logs, err := a.logs.Attempt(g.restarts, a.Plan.Procs)
	if err != nil {
		return a.unplaced(err)
	}
	g.logs, g.template = logs, nil
	g.attempts = append(g.attempts, logs)
	if a.warm.Ready() { // the others are not made to wait for one that is being made
		looking, cancel := context.WithTimeout(ctx, warm.CheckLimit)
		g.template = a.warm.Take(looking)
		cancel()
	}
	a.groupMu.Lock()
	over := g.lease.endedBefore(time.Now())
	if !over {
		err = a.startWorkers(ctx, g, local, 1)
	}
	a.groupMu.Unlock()
	if over || err != nil {
		return err
	}
	a.events.Started(g.workers[local].named(), &g.round, g.restarts)
	a.status.Running()
	a.warm.Prepare(a.Plan.Procs, true, g.forked()) //nolint:contextcheck // what it starts outlives the round: it ends with the job
	return nil
}

// cancelAgain takes back what was to be started again.
func (g *WorkerGroup) cancelAgain() {
	for _, t := range g.delays {
		t.Stop()
	}
}

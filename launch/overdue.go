package launch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"muster/internal/proc"
	"muster/launch/rankmonitor"
)

// overdues keeps apart what clients of NVRx bring about: workers that hang together are overdue together.
type overdues struct {
	mu    sync.Mutex
	group *WorkerGroup // the one that was looked at last
	ended time.Time    // when a worker of it was sent a signal last
}

// overdue ends a worker that takes longer than the time-outs of NVRx's client allow, as NVRx's launcher does: that is a
// failure like any other. What all workers do is looked at and kept before. Where those that hold up the others are on
// this node the first of them is ended, as the failure is theirs.
func (a *Agent) overdue(ctx context.Context, o rankmonitor.Overdue) {
	a.overdues.mu.Lock()
	defer a.overdues.mu.Unlock()
	rules := a.Plan.Job.Hang.Monitor
	g, w := a.workerAt(o.LocalRank)
	if w == nil || g == a.overdues.group && time.Since(a.overdues.ended) < rules.Every {
		return
	}
	text := fmt.Sprintf("rank %d %s for %v (%s: %v)", w.Rank, o.What, time.Since(o.Since).Round(100*time.Millisecond), o.Key,
		o.Limit.Round(10*time.Millisecond))
	if g != a.overdues.group {
		h, _ := a.explain(ctx, silence{silent: time.Since(o.Since), limit: o.Limit}) // without signs of life nobody is spared
		text += ": " + h.verdict.Sentence
		for _, other := range a.workersOf(g) {
			if slices.Contains(h.verdict.Culprits, other.Rank) && other.runs() {
				w = other
				break
			}
		}
	}
	a.overdues.group, a.overdues.ended = g, time.Now()
	if g, now := a.workerAt(w.LocalRank); now != w || g != a.overdues.group {
		return // it has ended meanwhile
	}
	w.expired.Store(&expiredTimer{signal: rules.Signal, overdue: text}) // first: the worker may end at once
	for _, s := range []syscall.Signal{syscall.SIGCONT, rules.Signal} {
		if err := w.proc.Signal(s); err != nil {
			a.Log.Warn().Err(err).Int("rank", w.Rank).Msg("a worker that takes too long could not be signalled")
			return
		}
	}
	a.Log.Warn().Int("rank", w.Rank).Str("signal", proc.SignalName(rules.Signal)).Str("reason", text).
		Msg("a worker takes too long and was signalled")
}

// workerAt is the worker that runs at a local rank, and its group, while that is not being stopped; nil: there is none.
func (a *Agent) workerAt(localRank int) (*WorkerGroup, *worker) {
	a.groupMu.Lock()
	defer a.groupMu.Unlock()
	g := a.group
	if g == nil {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping || localRank >= len(g.workers) || !g.workers[localRank].runs() {
		return nil, nil
	}
	return g, g.workers[localRank]
}

// workersOf are the workers of a group, by local rank.
func (a *Agent) workersOf(g *WorkerGroup) []*worker {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.workers)
}

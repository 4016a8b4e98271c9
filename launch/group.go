package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/progress"
	"muster/launch/report"
	"muster/launch/warm"
	"muster/rendezvous"
)

// restartPatience is how long a restart waits for a console that takes no output.
const restartPatience = time.Second

// worker is one training process of a group.
type worker struct {
	plan.Worker
	proc *proc.Process
	logs *output.Worker
	// progress is what its program tells of itself; nil: it cannot.
	progress *progress.File
	// forked says that it comes from a template.
	forked bool
	// stopped is true when muster had begun to end the worker before it ended, or its lease was over. Written before
	// the exit is announced.
	stopped bool
	// expired is the time-out that muster has sent a signal for, nil for none.
	expired atomic.Pointer[expiredTimer]
}

// expiredTimer is a timer of torchelastic's file timer, by its scope, or a time-out of a client of NVRx, by what was
// overdue, that ran out; and the signal which its worker was sent.
type expiredTimer struct {
	signal         syscall.Signal
	scope, overdue string
}

// WorkerGroup is the workers of one agent in one round: they start together and they stop together, and between that
// only RestartRules.Scope process puts a new one in the place of one that failed.
type WorkerGroup struct {
	round rendezvous.Round
	// restarts is how often workers were started again before, as its workers see it.
	restarts int
	workers  []*worker // by local rank; written under mu
	// exited announces each worker once, in the order of their ends. It has room for all of them.
	exited chan *worker
	// again delivers the local rank of a worker that is to be started again, when its delay is over.
	again  chan int
	delays []*time.Timer

	template *warm.Template    // what workers are forked from; nil: they start as usual
	logs     *output.Attempt   // of those that are started now
	attempts []*output.Attempt // all of them
	finished bool              // all output was shown and its files are closed
	wg       sync.WaitGroup    // one for each worker: its exit is announced

	lease    *lease    // of the round
	steering *Steering // is told of its workers

	mu       sync.Mutex
	stopping bool // exits from now on are muster's doing
}

// startGroup starts the workers of a round in the order of their ranks. When one cannot be started, those before it are
// killed again. When ctx or the lease ends meanwhile no more are started: they are about to be stopped.
func (a *Agent) startGroup(ctx context.Context, r rendezvous.Round, restarts int, t *warm.Template) (*WorkerGroup, error) {
	logs, err := a.logs.Attempt(restarts, a.Plan.Procs)
	if err != nil {
		return nil, a.unplaced(err)
	}
	if err := a.clearDebug(); err != nil {
		return nil, err
	}
	g := &WorkerGroup{
		round: r, restarts: restarts, exited: make(chan *worker, a.Plan.Procs), again: make(chan int, a.Plan.Procs),
		template: t, logs: logs, attempts: []*output.Attempt{logs}, lease: a.meeting.lease, steering: a.Steering,
	}
	size := 1
	if t != nil {
		size = proc.ForksLimit
	}
	for first := 0; first < a.Plan.Procs && ctx.Err() == nil && !g.lease.endedBefore(time.Now()); first += size {
		if err := a.startWorkers(ctx, g, first, min(size, a.Plan.Procs-first)); err != nil {
			stopErr := a.stopGroup(context.WithoutCancel(ctx), g, proc.Ladder{Signal: syscall.SIGKILL}, restartPatience)
			if stopErr != nil {
				a.Log.Error().Err(stopErr).Msg("workers started so far could not be killed")
			}
			return nil, err
		}
	}
	return g, nil
}

// startWorkers starts n workers, the first of them with local rank first.
func (a *Agent) startWorkers(ctx context.Context, g *WorkerGroup, first, n int) (err error) {
	var workers []*worker
	var specs []proc.Spec
	defer func() {
		for _, w := range workers {
			w.logs.Started()
			if w.proc == nil {
				w.logs.Finish(ctx) // nothing was written: it returns at once
				w.progress.Close()
			}
		}
	}()
	for local := first; local < first+n; local++ {
		w, spec, err := a.newWorker(g, local)
		if w != nil {
			workers = append(workers, w)
		}
		if err != nil {
			return err
		}
		specs = append(specs, spec)
	}
	procs := make([]*proc.Process, n)
	if g.template != nil {
		if procs, err = g.template.Start(specs); err != nil {
			a.warm.FailedFork(g.template, err)
			g.template = nil
		}
	}
	for i, w := range workers {
		if w.proc = procs[i]; w.proc != nil {
			w.forked = true
			a.Log.Debug().Int("rank", w.Rank).Int("pid", w.proc.PID()).Msg("worker forked from the template")
		} else if w.proc, err = a.tree.Start(specs[i]); err != nil {
			return err
		}
		g.add(w)
	}
	return nil
}

// newWorker makes a place for a worker's output, and says how it is to be started. With an error there is a worker
// where its logs are to be finished.
func (a *Agent) newWorker(g *WorkerGroup, local int) (*worker, proc.Spec, error) {
	logs, err := g.logs.Worker(output.Identity{
		LocalRank: local, Rank: g.round.BaseRank + local, Role: a.Plan.Job.Role,
		Host: a.Plan.Hostname,
	})
	if err != nil {
		return nil, proc.Spec{}, a.unplaced(err)
	}
	w := &worker{logs: logs}
	if w.Worker, err = a.Plan.At(a.places).Worker(g.round, local, g.restarts, logs.ErrorFile()); err != nil {
		return w, proc.Spec{}, err
	}
	w.progress = a.Steering.openProgress(w.Rank)
	if err := a.tellDebug(g.logs, w.Worker); err != nil {
		return w, proc.Spec{}, err
	}
	stdout, stderr := logs.Files()
	return w, proc.Spec{
		Path: w.Path, Args: w.Argv, Env: w.Env.Strings(), Dir: w.Dir, CPUs: w.CPUs,
		Files: []*os.File{a.stdin, stdout, stderr}, Label: "rank " + strconv.Itoa(w.Rank),
	}, nil
}

// unplaced gives an error of a directory of logs, for which there is something to try, its status: that of a log
// directory which cannot be made, where no workers have run, else that of a job which is to be tried again.
func (a *Agent) unplaced(err error) error {
	switch {
	case errhint.Of(err) == "":
		return err
	case !a.status.Ran():
		return errhint.Code(err, errhint.Usage)
	}
	return errhint.Code(err, errhint.TryAgain)
}

// add makes a started worker one of the group, in the place of the one before it where there was one.
func (g *WorkerGroup) add(w *worker) {
	g.mu.Lock()
	if w.LocalRank < len(g.workers) {
		g.workers[w.LocalRank] = w
	} else {
		g.workers = append(g.workers, w)
	}
	g.mu.Unlock()
	g.steering.started(w)
	g.wg.Go(func() {
		<-w.proc.Done()
		g.mu.Lock()
		stopped := g.stopping || g.lease.endedBefore(w.proc.Exit().Ended)
		w.stopped = stopped
		g.mu.Unlock()
		g.steering.ended(w, stopped)
		g.exited <- w
	})
}

// kill ends the workers that run, with all that has stayed with them, at once.
func (g *WorkerGroup) kill() {
	g.mu.Lock()
	workers := slices.Clone(g.workers)
	g.mu.Unlock()
	for _, w := range workers {
		_ = w.proc.SignalGroup(syscall.SIGKILL) // it may have ended
	}
}

// runs reports whether the worker has not ended.
func (w *worker) runs() bool {
	select {
	case <-w.proc.Done():
		return false
	default:
		return true
	}
}

// forked returns the process ids of the workers that were forked from a template, nil where some were not: what only
// some have noted says nothing of the others.
func (g *WorkerGroup) forked() []int {
	var pids []int
	for _, w := range g.workers {
		if !w.forked {
			return nil
		}
		pids = append(pids, w.proc.PID())
	}
	return pids
}

// running returns the processes that have not ended.
func (g *WorkerGroup) running() []*proc.Process {
	var procs []*proc.Process
	for _, w := range g.workers {
		if w.runs() {
			procs = append(procs, w.proc)
		}
	}
	return procs
}

// forward sends a signal to the workers themselves. Their children are left out: data loaders die of signals that the
// script alone handles. With spare it is for those alone that handle it: the others would die of it.
func (g *WorkerGroup) forward(s syscall.Signal, spare bool) {
	for _, p := range g.running() {
		if !spare || p.Catches(s) {
			_ = p.Signal(s) // it may have ended meanwhile
		}
	}
}

// stopGroup ends the workers and everything they started, and waits until their output was shown; patience bounds that,
// 0 waits as long as somebody reads.
func (a *Agent) stopGroup(ctx context.Context, g *WorkerGroup, ladder proc.Ladder, patience time.Duration) error {
	g.mu.Lock()
	g.stopping = true
	g.mu.Unlock()
	procs := g.running()
	if !ladder.Spare {
		procs = procs[:0]
		for _, w := range g.workers {
			procs = append(procs, w.proc)
		}
	}
	if err := a.tree.Stop(ctx, ladder, procs...); err != nil {
		return errhint.Code(err, errhint.Internal)
	}
	return a.finishGroup(ctx, g, patience)
}

// finishGroup waits until the output of workers that have ended was shown. Later calls do nothing: a job can be decided
// after its group was stopped for a restart.
func (a *Agent) finishGroup(ctx context.Context, g *WorkerGroup, patience time.Duration) error {
	if g.finished {
		return nil
	}
	g.finished = true
	g.wg.Wait()
	// Our own output may go to a pager that its reader has left standing: only impatience gives up on it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := a.onHurry(cancel)
	defer stop()
	if patience > 0 {
		defer time.AfterFunc(patience, cancel).Stop()
	}
	var finished sync.WaitGroup
	for _, w := range g.workers {
		finished.Go(func() { w.logs.Finish(ctx) })
	}
	finished.Wait()
	var errs []error
	for _, logs := range g.attempts {
		errs = append(errs, logs.Close())
	}
	return errors.Join(errs...)
}

// exits returns what became of the group's workers. All must have ended and been finished.
func (g *WorkerGroup) exits() []report.Exit {
	exits := make([]report.Exit, len(g.workers))
	for i, w := range g.workers {
		exits[i] = w.exit()
	}
	return exits
}

func (w *worker) exit() report.Exit {
	e := w.proc.Exit()
	exit := report.Exit{
		Rank: w.Rank, LocalRank: w.LocalRank, PID: w.proc.PID(),
		Code: e.Code, Signal: e.Signal, CoreDumped: e.CoreDumped, At: e.Ended, Stopped: w.stopped,
		LastLines: w.logs.LastLines(report.LastLinesKept), ErrorFile: w.logs.ErrorFile(),
	}
	if t := w.expired.Load(); t != nil && t.signal == e.Signal { // it may have survived that signal and died of something else
		exit.Watchdog, exit.Overdue = t.scope, t.overdue
	}
	return exit
}

// named is the worker as event records name it.
func (w *worker) named() report.EventWorker {
	return report.EventWorker{Rank: w.Rank, LocalRank: w.LocalRank, PID: w.proc.PID()}
}

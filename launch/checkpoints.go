package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/preempt"
	"muster/internal/python"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// Checkpoints keeps what workers save in memory, and writes it to disk behind them. checkpointd.Service is one.
type Checkpoints interface {
	// BeginRound is told of the round whose workers are about to start, and of the board that its agents share; again
	// where only this node's workers start again in it.
	BeginRound(ctx context.Context, r rendezvous.Round, board rendezvous.Board, again bool) error
	// RoundOver is told when all workers have ended, and why.
	RoundOver(why string)
	// Save has the newest step in memory written to disk, and does not wait for that.
	Save(why string)
	// Drain waits until everything that is to be written is on disk.
	Drain(ctx context.Context) error
	// Label names what is left in memory if the agent is killed, for Agent.Salvager; empty: nothing is.
	Label() string
	// Wrote returns how many parts of steps were brought to disk here, their bytes, and how long that took.
	Wrote() (parts, bytes int64, took time.Duration)
	// Close gives up what is left.
	Close() error
}

// CheckpointEvents is told what becomes of the steps of checkpoints. It waits for nobody.
type CheckpointEvents struct {
	// Committed is told of each step that got its name on disk, Saved of steps that all ranks have saved to memory.
	Committed func(step int64, dir string, took time.Duration)
	Saved     func(step int64, dir string, at time.Time)
}

// openCheckpoints makes our Python ready, and whatever keeps checkpoints.
func (a *Agent) openCheckpoints(ctx context.Context) (err error) {
	if !a.Plan.BringsPython() {
		return nil
	}
	if err := a.checkCheckpointPaths(ctx); err != nil {
		return err
	}
	dir := a.Plan.PythonDir()
	if err := python.InstallCheckpoint(dir); err != nil {
		return err
	}
	if err := a.Plan.Job.Checkpoint.Shim.Settle(dir); err != nil {
		return err
	}
	if !a.Plan.Job.Checkpoint.On {
		return nil
	}
	if !a.Plan.Job.Alone() && !a.Plan.SharesCheckpoints() {
		a.Log.Debug().Msg("no job token (MUSTER_TOKEN_FILE): what a node keeps in memory is lost with it")
	}
	if a.Plan.Job.Alone() && a.Plan.Job.Checkpoint.Replicas > 1 {
		a.Log.Warn().Msg("the job has one node: --ckpt-replicas has no effect")
	}
	if a.OpenCheckpoints == nil {
		return nil
	}
	if a.checkpoints, err = a.OpenCheckpoints(ctx, a.Plan.CheckpointSocket(),
		CheckpointEvents{a.Steering.committed, a.Steering.saved}); err != nil {
		return err
	}
	a.Steering.gathers(func(m *report.Measured) {
		parts, bytes, took := a.checkpoints.Wrote()
		m.Written, m.WrittenBytes = report.Durations{Count: parts, Seconds: took.Seconds()}, bytes
	})
	if label, limit := a.checkpoints.Label(), a.Plan.Job.Checkpoint.Salvage; label != "" {
		a.tree.RunOnDeath(append(slices.Clone(a.Salvager), label, limit.String()), limit+salvageGrace)
	}
	return nil
}

// pathsLimit is how long workers wait for the disks of --ckpt-dir and --ckpt-on-file to say whether they can be used.
const pathsLimit = 10 * time.Second

// checkCheckpointPaths refuses paths that cannot be what they are to be. A disk that does not answer, or fails, is not
// judged: it may answer when it is needed.
func (a *Agent) checkCheckpointPaths(ctx context.Context) error {
	checked := make(chan error, 1)
	go func() { checked <- a.Plan.CheckPaths() }()
	late := time.NewTimer(pathsLimit)
	defer late.Stop()
	select {
	case err := <-checked:
		if plan.WrongPath(err) {
			return errhint.Code(err, errhint.Usage)
		}
		if err != nil {
			a.Log.Warn().Err(err).Msg("a disk fails: checkpoints may not get there")
		}
	case <-late.C:
		a.Log.Warn().Msg("a disk does not answer: --ckpt-dir and --ckpt-on-file are taken as they are")
	case <-ctx.Done():
	}
	return nil
}

// salvageGrace is how much longer than it may take the salvager lives: to tell that its time was over.
const salvageGrace = 5 * time.Second

// lastWords is where the guardian and the salvager write; nil: they have nothing to say. Whoever reads our output waits
// for them.
func (a *Agent) lastWords() *os.File {
	if rules := a.Plan.Job.Checkpoint; rules.On && rules.Salvage > 0 {
		return a.Stderr
	}
	return nil
}

// beginCheckpoints tells whoever keeps checkpoints of the workers that are about to start. Where the nodes do not come
// together about checkpoints, workers meet that as an error.
func (a *Agent) beginCheckpoints(ctx context.Context, again bool) {
	if a.checkpoints == nil {
		return
	}
	if err := a.checkpoints.BeginRound(ctx, a.meeting.Round, a.meeting.Board(), again); err != nil {
		a.Log.Error().Err(err).Msg("checkpoints cannot be kept in this round")
	}
}

// roundOver tells whoever keeps checkpoints that no worker is left of a round.
func (a *Agent) roundOver(d policy.Decision) {
	if a.checkpoints != nil {
		a.checkpoints.RoundOver(d.Message())
	}
}

// preemptedFile appears in the run directory when a notice has come; internal/python's Checkpointer.preempted looks for
// it.
const preemptedFile = "preempted"

// watchNotices hears of notices that this machine will be taken away, until the returned function is called.
func (a *Agent) watchNotices(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { preempt.Watch(ctx, a.Log, a.noticed, a.Notices...) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// noticed saves what is in memory, and lets the workers know.
func (a *Agent) noticed(n preempt.Notice) {
	e := a.Log.Warn().Str("source", n.Source).Str("reason", n.What)
	if !n.Deadline.IsZero() {
		e = e.Time("deadline", n.Deadline)
	}
	e.Msg("this machine will be taken away: the newest checkpoint in memory is written to disk")
	if a.checkpoints != nil {
		a.checkpoints.Save("notice by " + n.Source + ": " + n.What)
	}
	if err := os.WriteFile(filepath.Join(a.Plan.RunDir, preemptedFile), nil, 0o600); err != nil {
		a.Log.Warn().Err(err).Msg("workers do not hear that this machine will be taken away")
	}
}

// drainCheckpoints waits until the last checkpoint is on disk; the second signal to muster ends that. Later calls do
// nothing.
func (a *Agent) drainCheckpoints(ctx context.Context) error {
	if a.checkpoints == nil || a.drained {
		return nil
	}
	a.drained = true
	a.checkpoints.RoundOver("the job ends")
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := a.onHurry(func() { cancel(errors.New("a second signal came")) })
	defer stop()
	began := time.Now()
	err := a.checkpoints.Drain(ctx)
	if waited := time.Since(began); err == nil && waited > time.Second {
		a.Log.Info().Dur("waited_ms", waited).Msg("no checkpoint is left to be written to disk")
	}
	return err
}

// closeCheckpoints ends what keeps checkpoints. What could not be written is told here where the job did not succeed in
// any case.
func (a *Agent) closeCheckpoints(ctx context.Context) error {
	if a.checkpoints == nil {
		return nil
	}
	if err := a.drainCheckpoints(ctx); err != nil {
		a.Log.Error().Err(err).Msg("the last checkpoint is not on disk")
	}
	return a.checkpoints.Close()
}

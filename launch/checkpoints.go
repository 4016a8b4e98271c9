package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/preempt"
	"muster/internal/python"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/rendezvous"
)

// Checkpoints keeps what workers save in memory, and writes it to disk behind them. checkpointd.Service is one.
type Checkpoints interface {
	// BeginRound is told of the round whose workers are about to start, and of the board that its agents share; again where
	// only this node's workers start again in it.
	BeginRound(ctx context.Context, r rendezvous.Round, board rendezvous.Board, again bool) error
	// RoundOver is told when all workers have ended, and why.
	RoundOver(why string)
	// Save has the newest step in memory written to disk, and does not wait for that.
	Save(why string)
	// Drain waits until everything that is to be written is on disk.
	Drain(ctx context.Context) error
	// Label names what is left in memory if the agent is killed, for Agent.Salvager; empty: nothing is.
	Label() string
	// Close gives up what is left.
	Close() error
}

const (
	pythonDir        = "python"
	checkpointSocket = "socket"
)

// bringsPython reports whether workers find packages of ours.
func (p *Plan) bringsPython() bool {
	return p.Job.Checkpoint.On || p.Job.Checkpoint.Shim == python.ShimBarred
}

// sharesCheckpoints reports whether nodes give copies of their workers' checkpoints to each other, which takes a token.
func (p *Plan) sharesCheckpoints() bool {
	return !p.Job.Alone() && (p.token || p.Job.Meeting.TokenFile != "")
}

// setCheckpoints tells a worker where to find our Python, and where muster listens for it.
func (p *Plan) setCheckpoints(vars map[string]job.Var) {
	rules := p.Job.Checkpoint
	if !p.bringsPython() {
		return
	}
	set := func(why, name, value string) {
		vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: why}}
	}
	path := filepath.Join(p.RunDir, pythonDir)
	if old := vars["PYTHONPATH"].Value; old != "" && rules.Shim.First() {
		path += ":" + old
	} else if old != "" {
		path = old + ":" + path
	}
	set("with the packages that save checkpoints", "PYTHONPATH", path)
	if !rules.On {
		return
	}
	if rules.Dir != "" {
		vars["MUSTER_CKPT_DIR"] = job.Var{Name: "MUSTER_CKPT_DIR", Value: rules.Dir, Source: p.source("ckpt-dir")}
	}
	set("where checkpoints are kept in memory", "MUSTER_SOCKET", filepath.Join(p.RunDir, checkpointSocket))
}

// openCheckpoints makes our Python ready, and whatever keeps checkpoints.
func (a *Agent) openCheckpoints(ctx context.Context) (err error) {
	if !a.Plan.bringsPython() {
		return nil
	}
	if err := a.checkCheckpointPaths(ctx); err != nil {
		return err
	}
	dir := filepath.Join(a.Plan.RunDir, pythonDir)
	if err := python.InstallCheckpoint(dir); err != nil {
		return err
	}
	if err := a.Plan.Job.Checkpoint.Shim.Settle(dir); err != nil {
		return err
	}
	if !a.Plan.Job.Checkpoint.On {
		return nil
	}
	if !a.Plan.Job.Alone() && !a.Plan.sharesCheckpoints() {
		a.Log.Debug().Msg("no job token (MUSTER_TOKEN_FILE): what a node keeps in memory is lost with it")
	}
	if a.Plan.Job.Alone() && a.Plan.Job.Checkpoint.Replicas > 1 {
		a.Log.Warn().Msg("the job has one node: --ckpt-replicas has no effect")
	}
	if a.OpenCheckpoints == nil {
		return nil
	}
	if a.checkpoints, err = a.OpenCheckpoints(ctx, filepath.Join(a.Plan.RunDir, checkpointSocket)); err != nil {
		return err
	}
	if label, limit := a.checkpoints.Label(), a.Plan.Job.Checkpoint.Salvage; label != "" {
		a.tree.RunOnDeath(append(slices.Clone(a.Salvager), label, limit.String()), limit+salvageGrace)
	}
	return nil
}

// pathsLimit is how long workers wait for the disks of --ckpt-dir and --ckpt-on-file to say whether they can be used.
const pathsLimit = 10 * time.Second

// checkCheckpointPaths refuses paths that cannot be what they are to be. A disk that does not answer, or fails, is not judged: it may
// answer when it is needed.
func (a *Agent) checkCheckpointPaths(ctx context.Context) error {
	checked := make(chan error, 1)
	go func() { checked <- a.Plan.checkPaths() }()
	late := time.NewTimer(pathsLimit)
	defer late.Stop()
	select {
	case err := <-checked:
		if isWrongPath(err) {
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

// isWrongPath reports whether an error is about what the user wrote rather than about a disk that is in trouble.
func isWrongPath(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOTDIR, unix.EISDIR, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENAMETOOLONG, unix.ELOOP}, func(of error) bool {
		return errors.Is(err, of)
	})
}

// CheckpointDir is --ckpt-dir as workers find it, empty where there is none.
func (p *Plan) CheckpointDir() string {
	dir := p.Job.Checkpoint.Dir
	if dir == "" {
		return ""
	}
	return filepath.Clean(within(p.Dir, dir))
}

// checkPaths reads what is there.
func (p *Plan) checkPaths() error {
	r := &p.Job.Checkpoint
	if dir := p.CheckpointDir(); dir != "" {
		if err := writable(dir); err != nil {
			return errhint.With(fmt.Errorf("cannot save checkpoints to --ckpt-dir %s: %w", r.Dir, err), "name a directory in which muster can write")
		}
	}
	if r.OnFile != "" {
		if info, err := os.Stat(r.OnFile); err == nil && info.IsDir() {
			return errhint.With(fmt.Errorf("cannot wait for --ckpt-on-file %s: %w", r.OnFile, unix.EISDIR), "name the file in it that somebody makes when the machine will go")
		}
	}
	return nil
}

// writable returns an error where a directory cannot be written to, or made: what it is to lie in tells.
func writable(dir string) error {
	info, err := os.Stat(dir)
	for errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
		if link, err := os.Lstat(dir); err == nil && link.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link to what is not there: %w", dir, unix.ENOTDIR)
		}
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: %w", dir, unix.ENOTDIR)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	var fs unix.Statfs_t                                                                                                               // root may write to what holds no files of anybody's
	if err := unix.Statfs(dir, &fs); err == nil && slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC}, int64(fs.Type)) { //nolint:unconvert // 32 bits elsewhere
		return fmt.Errorf("%s is of a file system of the kernel's own: %w", dir, unix.EROFS)
	}
	return nil
}

// salvageGrace is how much longer than it may take the salvager lives: to tell that its time was over.
const salvageGrace = 5 * time.Second

// lastWords is where the guardian and the salvager write; nil: they have nothing to say. Whoever reads our output waits for them.
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

// preemptedFile appears in the run directory when a notice has come; internal/python's Checkpointer.preempted looks for it.
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

// drainCheckpoints waits until the last checkpoint is on disk; the second signal to muster ends that. Later calls do nothing.
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

// closeCheckpoints ends what keeps checkpoints. What could not be written is told here where the job did not succeed in any case.
func (a *Agent) closeCheckpoints(ctx context.Context) error {
	if a.checkpoints == nil {
		return nil
	}
	if err := a.drainCheckpoints(ctx); err != nil {
		a.Log.Error().Err(err).Msg("the last checkpoint is not on disk")
	}
	return a.checkpoints.Close()
}

package launch

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/plan"
	"muster/launch/rundir"
)

// Room is the run directory of processes that a driver starts one by one on this machine. In a debug job they are
// described there.
type Room struct {
	agent Agent
	dir   rundir.Dir
}

// OpenRoom makes the run directory of a plan. The caller closes it, and has Dir removed when it is killed. Where it
// cannot be made the processes run all the same, but for those of a job that needs it.
func OpenRoom(p *plan.Plan, log zerolog.Logger) (*Room, error) {
	dir, err := p.OpenRunDir(log)
	if err != nil && !p.Job.Debug.On && !p.Job.Warm.Wanted() {
		log.Warn().Err(err).Str("hint", errhint.Of(err)).Msg("the job runs, but its workers here cannot be looked into from outside")
		return &Room{agent: Agent{Plan: p, Log: log}}, nil
	}
	if err != nil {
		return nil, err
	}
	p.RunDir = dir.Path
	return &Room{agent: Agent{Plan: p, Log: log}, dir: dir}, nil
}

// Dir is the directory; empty where there is none.
func (d *Room) Dir() string { return d.dir.Path }

// Tell describes the process of a rank that is about to start, in a debug job.
func (d *Room) Tell(w plan.Worker) error {
	if !d.agent.Plan.Job.Debug.On {
		return nil
	}
	dir := d.agent.Plan.RunDir
	env, err := d.agent.writeDebug(dir, w)
	if err == nil {
		ways := enter(dir, env, w, d.agent.Plan.CommandOf(w.LocalRank))
		d.agent.Log.Warn().Int("rank", w.Rank).Str("run_dir", dir).Str("try", ways[0]).Str("or", ways[1]).
			Msg("debug mode: the rank can be entered")
	}
	return err
}

// Forget removes what was told of a rank whose process has ended.
func (d *Room) Forget(w plan.Worker) error {
	if d.Dir() == "" {
		return nil
	}
	var errs []error
	for _, dir := range []string{"env", debugDir} {
		if err := os.Remove(filepath.Join(d.agent.Plan.RunDir, dir, debugName(w.Rank))); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close removes the directory.
func (d *Room) Close() error { return d.dir.Remove() }

package launch

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"muster/launch/plan"
	"muster/launch/rundir"
)

// Room is the run directory of processes that a driver starts one by one on this machine: in a debug job they are
// described there, so that muster exec enters them. Nil is the room of a job that needs none.
type Room struct {
	agent Agent
	dir   rundir.Dir
}

// OpenRoom makes the run directory of a plan; nil where nothing would be in it. The caller closes it, and has what
// Removed returns removed when it is killed.
func OpenRoom(p *plan.Plan, log zerolog.Logger) (*Room, error) {
	if !p.Job.Debug.On && !p.Job.Warm.Wanted() {
		return nil, nil
	}
	dir, err := p.OpenRunDir(log)
	if err != nil {
		return nil, err
	}
	p.RunDir = dir.Path
	return &Room{agent: Agent{Plan: p, Log: log}, dir: dir}, nil
}

// Removed is the directory that is to be removed at the end, whoever does it.
func (d *Room) Removed() []string {
	if d == nil {
		return nil
	}
	return []string{d.agent.Plan.RunDir}
}

// Tell describes the process of a rank that is about to start, in a debug job.
func (d *Room) Tell(w plan.Worker) error {
	if d == nil || !d.agent.Plan.Job.Debug.On {
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
	if d == nil {
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
func (d *Room) Close() error {
	if d == nil {
		return nil
	}
	return d.dir.Remove()
}

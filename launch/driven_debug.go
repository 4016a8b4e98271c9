package launch

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
)

// DebugRoom is where the processes of a debug job are described that a driver starts one by one on this machine, so that muster exec
// enters them. A nil room is that of a job that is none.
type DebugRoom struct {
	agent Agent
}

// OpenDebug makes the run directory of a debug job; nil where the plan's is none. The caller closes it, and has what Removed
// returns removed when it is killed.
func OpenDebug(p *Plan, log zerolog.Logger) (*DebugRoom, error) {
	if !p.Job.Debug.On {
		return nil, nil
	}
	dir, err := makeJobDir(p.RunDir)
	if err != nil {
		return nil, err
	}
	p.RunDir = dir.path
	return &DebugRoom{agent: Agent{Plan: p, Log: log, dir: dir}}, nil
}

// Removed is the directory that is to be removed at the end, whoever does it.
func (d *DebugRoom) Removed() []string {
	if d == nil {
		return nil
	}
	return []string{d.agent.Plan.RunDir}
}

// Tell describes the process of a rank that is about to start.
func (d *DebugRoom) Tell(w Worker) error {
	if d == nil {
		return nil
	}
	dir := d.agent.Plan.RunDir
	env, err := d.agent.writeDebug(dir, w)
	if err == nil {
		ways := d.agent.enter(env, w)
		d.agent.Log.Warn().Int("rank", w.Rank).Str("run_dir", dir).Str("try", ways[0]).Str("or", ways[1]).
			Msg("debug mode: the rank can be entered")
	}
	return err
}

// Forget removes what was told of a rank whose process has ended.
func (d *DebugRoom) Forget(w Worker) error {
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
func (d *DebugRoom) Close() error {
	if d == nil {
		return nil
	}
	return d.agent.dir.remove()
}

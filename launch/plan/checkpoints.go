package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/python"
	"muster/launch/job"
)

// PythonDir is where workers find our Python.
func (p *Plan) PythonDir() string { return filepath.Join(p.RunDir, "python") }

// StacksDir is where the workers' Python finds what has it write its stacks.
func (p *Plan) StacksDir() string { return filepath.Join(p.RunDir, "hook") }

// setStacks has a worker's Python answer when it is asked for its stacks.
func (p *Plan) setStacks(vars map[string]job.Var) {
	if !p.Job.Hang.Answers() {
		return
	}
	path, old := p.StacksDir(), vars["PYTHONPATH"]
	if old.Value != "" {
		path = old.Value + ":" + path
	}
	vars["PYTHONPATH"] = job.Var{
		Name: "PYTHONPATH", Value: path, Source: job.Source{Kind: job.FromMuster, Name: "with what answers to muster stacks"},
		Secret: old.Secret,
	}
}

// CheckpointSocket is where muster listens for workers that save checkpoints.
func (p *Plan) CheckpointSocket() string { return filepath.Join(p.RunDir, "socket") }

// BringsPython reports whether workers find packages of ours.
func (p *Plan) BringsPython() bool {
	return p.Job.Checkpoint.On || p.Job.Checkpoint.Shim == python.ShimBarred
}

// SharesCheckpoints reports whether nodes give copies of their workers' checkpoints to each other, which takes a token.
func (p *Plan) SharesCheckpoints() bool {
	return !p.Job.Alone() && (p.token || p.Job.Meeting.TokenFile != "")
}

// CheckpointsOutlive reports whether what is in memory is to outlive an agent that is killed. The next one finds it by
// the run id, which torchrun's jobs share that have none of their own.
func (p *Plan) CheckpointsOutlive() bool {
	return p.Job.Checkpoint.Salvage > 0 && (p.Job.Alone() || p.RunID != "none")
}

// setCheckpoints tells a worker where to find our Python, and where muster listens for it.
func (p *Plan) setCheckpoints(vars map[string]job.Var) {
	rules := p.Job.Checkpoint
	if !p.BringsPython() {
		return
	}
	set := func(why, name, value string) {
		vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: why}}
	}
	path := p.PythonDir()
	if old := vars["PYTHONPATH"].Value; old != "" && rules.Shim.First() {
		path += ":" + old
	} else if old != "" {
		path = old + ":" + path
	}
	secret := vars["PYTHONPATH"].Secret
	set("with the packages that save checkpoints", "PYTHONPATH", path)
	if v := vars["PYTHONPATH"]; secret {
		v.Secret = true
		vars["PYTHONPATH"] = v
	}
	if !rules.On {
		return
	}
	if rules.Dir != "" {
		vars["MUSTER_CKPT_DIR"] = job.Var{Name: "MUSTER_CKPT_DIR", Value: rules.Dir, Source: p.source("ckpt-dir")}
	}
	set("where checkpoints are kept in memory", "MUSTER_SOCKET", p.CheckpointSocket())
}

// WrongPath reports whether an error is about what the user wrote rather than about a disk that is in trouble.
func WrongPath(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOTDIR, unix.EISDIR, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENAMETOOLONG, unix.ELOOP},
		func(of error) bool {
			return errors.Is(err, of)
		})
}

// CheckpointDir is --ckpt-dir as workers find it, empty where there is none.
func (p *Plan) CheckpointDir() string {
	dir := p.Job.Checkpoint.Dir
	if dir == "" {
		return ""
	}
	return filepath.Clean(Within(p.Dir, dir))
}

// CheckPaths reads what is there.
func (p *Plan) CheckPaths() error {
	r := &p.Job.Checkpoint
	if dir := p.CheckpointDir(); dir != "" {
		if err := writable(dir); err != nil {
			return errhint.With(fmt.Errorf("cannot save checkpoints to --ckpt-dir %s: %w", r.Dir, err),
				"name a directory in which muster can write")
		}
	}
	if r.OnFile != "" {
		if info, err := os.Stat(r.OnFile); err == nil && info.IsDir() {
			return errhint.With(fmt.Errorf("cannot wait for --ckpt-on-file %s: %w", r.OnFile, unix.EISDIR),
				"name the file in it that somebody makes when the machine will go")
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
	var fs unix.Statfs_t // root may write to what holds no files of anybody's
	if err := unix.Statfs(dir, &fs); err == nil &&
		slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC}, int64(fs.Type)) { //nolint:unconvert // 32 bits elsewhere
		return fmt.Errorf("%s is of a file system of the kernel's own: %w", dir, unix.EROFS)
	}
	return nil
}

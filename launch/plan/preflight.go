package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/job"
)

// pythonPatience is how long an interpreter may take to say what it is: it may have to come from a network's disk.
const pythonPatience = 30 * time.Second

// TakePreflight makes the job's plan for this node and looks at what the node has for it. The plan is nil where the job
// cannot start here; then Problem says why.
func TakePreflight(ctx context.Context, j job.Job, m Machine) (*Plan, job.Preflight) {
	f := job.Preflight{Host: m.Hostname, Arch: runtime.GOARCH, Kernel: kernelRelease(), Dir: m.Dir}
	f.OpenFiles, f.LockedMemory = softLimit(unix.RLIMIT_NOFILE), softLimit(unix.RLIMIT_MEMLOCK)
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil {
		f.SharedMemory = st.Blocks * uint64(st.Bsize)
	}
	if m.CountDevices != nil {
		f.Accelerators = m.CountDevices()
	}
	var plan *Plan
	err := checkDir(m.Dir)
	if err == nil {
		if plan, err = New(j, m); err == nil {
			err = plan.CheckWarm(ctx)
		}
	}
	if err != nil {
		plan = nil
		f.Problem, f.Hint, f.Status = err.Error(), errhint.Of(err), errhint.CodeOf(err)
	} else {
		f.Workers = plan.Procs
		plan.askPython(ctx, &f)
	}
	f.Time = time.Now()
	return plan, f
}

// checkDir refuses a working directory that workers could not be started in.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		err = fmt.Errorf("cannot use the working directory %s: %w", dir, err)
	case !info.IsDir():
		err = fmt.Errorf("cannot use the working directory %s: it is no directory", dir)
	case unix.Access(dir, unix.X_OK) != nil:
		err = fmt.Errorf("cannot use the working directory %s: %w", dir, unix.EACCES)
	default:
		return nil
	}
	return errhint.Code(errhint.With(err, "it must be on every machine: copy it, share it, or name one that is there"), errhint.Usage)
}

// askPython asks the workers' interpreter for its version and torch's, without importing torch.
func (p *Plan) askPython(ctx context.Context, f *job.Preflight) {
	if p.Job.Command.Kind == job.Program && !isPython(p.entry.path) {
		return
	}
	f.Python = Within(p.Dir, p.entry.path)
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: f.Python, Args: []string{p.entry.prefix[0], "-c", python.About}, Env: p.environ(),
		Deadline: pythonPatience, Grace: time.Second, MaxStdout: 64 << 10, MaxStderr: 64 << 10,
	})
	var said struct{ Python, Torch string }
	// The interpreter's own start-up files may say something first.
	lines := bytes.Split(bytes.TrimSpace(c.Stdout), []byte("\n"))
	switch {
	case err != nil:
	case c.Canceled:
		err = context.Cause(ctx)
	case c.TimedOut:
		err = fmt.Errorf("it said nothing within %v", pythonPatience)
	case json.Unmarshal(lines[len(lines)-1], &said) != nil:
		err = errors.New("it cannot tell its version: " + lastLine(c.Stderr, c.Exit))
	}
	if err != nil {
		f.PythonProblem = err.Error()
		return
	}
	f.PythonVersion, f.Torch = said.Python, said.Torch
}

// lastLine is the last thing a program said on standard error, or how it ended.
func lastLine(stderr []byte, exit proc.Exit) string {
	text := strings.TrimSpace(string(stderr))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if text == "" {
		return exit.String()
	}
	return printable.Output(text)
}

func softLimit(resource int) uint64 {
	var l syscall.Rlimit
	if syscall.Getrlimit(resource, &l) != nil {
		return 0
	}
	return l.Cur
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

package proc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Spec describes a process to start.
type Spec struct {
	// Path is the file to execute, as LookPath returned it; a relative one counts from Dir.
	Path string
	// Args is the whole argument vector, the program's name first. Empty: {Path}.
	Args []string
	// Env is the whole environment, "NAME=VALUE".
	Env []string
	// Dir is the working directory. Empty: ours.
	Dir string
	// Files become descriptors 0, 1, 2 and so on. The first three are /dev/null where nil or missing.
	Files []*os.File
	// CPUs are those that the process and what it starts may run on. Empty: those of ours.
	CPUs []int
	// Program is what a fork of a template runs instead of what the template was made for: a script and its arguments,
	// the last of Args. Other starts go by Args alone.
	Program []string
	// Terminal says that Files[0] is a terminal, which becomes the process's own: signals of its keys reach it.
	Terminal bool
	// Label names the process in errors and logs, for example "rank 3".
	Label string
}

// ErrClosed is returned by Start after Close.
var ErrClosed = errors.New("the process tree is closed")

// spawner runs every start on one thread for as long as the tree is open: the parent-death signal of a child is sent
// when the thread that forked it ends, and Go ends threads as it likes. The thread is handed back alive, so that
// processes which outlive the tree do not die of its closing.
func (t *Tree) spawner() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case f := <-t.spawn:
			f()
		case <-t.closing:
			return
		}
	}
}

// Start starts a worker: leader of its own session and process group, killed by the kernel when this process dies,
// with our umask and limits. When it returns nil the program has been executed. Errors carry status 126 or 127 and a
// hint where the program itself is at fault.
func (t *Tree) Start(spec Spec) (*Process, error) {
	p, err := t.start(spec, asWorker)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.pushLocked()
	t.mu.Unlock()
	t.nudge()
	return p, nil
}

func (t *Tree) start(spec Spec, as role) (*Process, error) {
	files, cleanup, err := spec.open()
	if err != nil {
		return nil, err
	}
	defer cleanup()
	args := spec.Args
	if len(args) == 0 {
		args = []string{spec.Path}
	}
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	var p *Process
	answer := make(chan error, 1)
	request := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.closed() {
			answer <- ErrClosed
			return
		}
		pidfd := -1
		attr := &syscall.ProcAttr{Dir: spec.Dir, Env: spec.Env, Files: fds, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
		attr.Sys.Setctty = spec.Terminal // that of descriptor 0
		if as != asGuardian {
			attr.Sys.Pdeathsig = syscall.SIGKILL
		}
		// A template stays outside: what kills the workers is not for it.
		if as == asWorker {
			if c := t.birthplaceLocked(); c != nil {
				attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(c.dir.Fd())
			}
		}
		unbind, err := t.bindThread(spec.CPUs)
		if err != nil {
			answer <- err
			return
		}
		defer unbind()
		started := time.Now()
		pid, err := forkExec(spec.Path, args, attr)
		if err != nil && attr.Sys.UseCgroupFD {
			// Either the program is at fault, or clone3 is missing or forbidden, or the cgroup takes no members. The
			// errors are the same ones, so ask again without a cgroup.
			attr.Sys.UseCgroupFD = false
			first := err
			if pid, err = forkExec(spec.Path, args, attr); err == nil {
				t.log.Debug().Err(first).Msg("no cgroup for the workers")
				t.dropCgroupLocked()
			}
		}
		if err == nil {
			p = t.registerLocked(pid, pidfd, spec.Label, as, started)
		}
		answer <- err
	}
	select {
	case t.spawn <- request:
	case <-t.closing:
		return nil, fmt.Errorf("cannot start %s: %w", spec.name(), ErrClosed)
	}
	err = <-answer
	runtime.KeepAlive(files)
	if err != nil {
		if errors.Is(err, ErrClosed) || errors.Is(err, errUnbound) {
			return nil, fmt.Errorf("cannot start %s: %w", spec.name(), err)
		}
		return nil, spec.explain(err)
	}
	return p, nil
}

// forkExec retries while an executable that was just written is still open for writing in a child that another thread
// has forked and that has not yet reached its exec (golang.org/issue/22315).
func forkExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	for i := 0; ; i++ {
		pid, err := syscall.ForkExec(path, args, attr)
		if !errors.Is(err, syscall.ETXTBSY) || i == 10 {
			return pid, err
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
	}
}

func (s Spec) name() string {
	if s.Label != "" {
		return s.Label
	}
	return s.Path
}

// open returns the files to pass, at least three. cleanup closes what was opened for it.
func (s Spec) open() (files []*os.File, cleanup func(), err error) {
	var null *os.File
	cleanup = func() {
		if null != nil {
			_ = null.Close()
		}
	}
	for i := range max(3, len(s.Files)) {
		var f *os.File
		if i < len(s.Files) {
			f = s.Files[i]
		}
		if f == nil {
			if null == nil {
				if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
					return nil, func() {}, fmt.Errorf("cannot start %s: %w", s.name(), err)
				}
			}
			f = null
		}
		files = append(files, f)
	}
	return files, cleanup, nil
}

// explain turns what fork, chdir or exec returned into an error that says which of them, and what can be done.
func (s Spec) explain(err error) error {
	if s.Dir != "" {
		if st, derr := os.Stat(s.Dir); derr != nil {
			return errhint.Code(fmt.Errorf("cannot start %s in its working directory: %w", s.name(), derr), errhint.NotExecuted)
		} else if !st.IsDir() {
			return errhint.Code(fmt.Errorf("cannot start %s: working directory %q is not a directory", s.name(), s.Dir),
				errhint.NotExecuted)
		}
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return errhint.With(fmt.Errorf("cannot start %s: %w", s.name(), err),
			"the limit of processes is reached: look at ulimit -u and at pids.max of the cgroup")
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return errhint.With(fmt.Errorf("cannot start %s: %w", s.name(), err),
			"the limit of open files is reached: raise it with ulimit -n; muster needs about 10, and 5 more for each worker")
	case errors.Is(err, unix.E2BIG):
		return errhint.Code(errhint.With(fmt.Errorf("cannot start %s: %w", s.name(), err),
			"arguments and environment together are too large for the kernel; one string may have 128 KiB"), errhint.NotExecuted)
	case slices.ContainsFunc([]error{
		unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.ELOOP, unix.ENAMETOOLONG, unix.EPERM,
		unix.EISDIR,
	},
		func(e error) bool { return errors.Is(err, e) }):
		if cause := checkExecutable(s.Path, s.Dir); cause != nil {
			return fmt.Errorf("cannot start %s: %w", s.name(), cause)
		}
		code := errhint.NotExecuted
		if errors.Is(err, unix.ENOENT) {
			code = errhint.NotFound
		}
		return errhint.Code(fmt.Errorf("cannot start %s: cannot execute %q: %w", s.name(), s.Path, err), code)
	default:
		return fmt.Errorf("cannot start %s: cannot execute %q: %w", s.name(), s.Path, err)
	}
}

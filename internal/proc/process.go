package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// role says what a process of ours is for.
type role int

const (
	asWorker   role = iota
	asTemplate      // forks workers
	asGuardian      // not part of the job
	asBeside        // of the job, and no worker
)

// Process is one worker that Tree.Start or Tree.StartSpares started. Its methods may be called by several goroutines at
// once.
type Process struct {
	t     *Tree
	id    ident
	label string
	role  role

	pidfd *os.File      // nil where the kernel has none
	poke  chan struct{} // the reaper saw it dead; used without pidfd. Room for one: it is a level, not a count
	done  chan struct{}

	// mu covers reaping: while it is held and reaped is false, the pid cannot be given to another process.
	mu     sync.Mutex
	reaped bool
	exit   Exit // written before done is closed
}

// Exit tells how a process ended.
type Exit struct {
	Code       int            // what it passed to exit, 0–255; -1 when a signal ended it or Tree.Close let it go
	Signal     syscall.Signal // what killed it, or 0
	CoreDumped bool
	Started    time.Time
	Ended      time.Time
	UserTime   time.Duration // CPU time, with the children it waited for
	SystemTime time.Duration
	MaxRSS     int64 // bytes, the largest of it and the children it waited for
}

// Status returns the exit status a shell would show: Code, or 128+n after signal n. A process that was let go while it
// ran has status 125.
func (e Exit) Status() int {
	switch {
	case e.Signal != 0:
		return errhint.FromSignal(int(e.Signal))
	case e.Code < 0:
		return errhint.Internal
	default:
		return e.Code
	}
}

// Success reports an exit with status 0.
func (e Exit) Success() bool { return e.Signal == 0 && e.Code == 0 }

// String describes the end in words: "exited with status 3", "was killed by SIGSEGV (core dumped)".
func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		s := "was killed by " + SignalName(e.Signal)
		if e.CoreDumped {
			s += " (core dumped)"
		}
		return s
	case e.Code < 0:
		return "was let go while it ran"
	default:
		return fmt.Sprintf("exited with status %d", e.Code)
	}
}

// SignalName returns SIGTERM for 15 and so on, and "signal n" for those without a name.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// PID returns the process id, which is also the id of its process group and of its session.
func (p *Process) PID() int { return p.id.PID }

// Began is when the process was started.
func (p *Process) Began() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit.Started
}

// Done is closed when the process has ended and Exit is valid.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the process ended. It waits for the end.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Signal sends sig to the process alone. It returns os.ErrProcessDone after its end.
func (p *Process) Signal(sig syscall.Signal) error { return p.kill(p.id.PID, sig) }

// SignalGroup sends sig to the process and to all that stayed in its process group. It returns os.ErrProcessDone after
// the end of the process itself; Tree.Stop reaches what outlived it.
func (p *Process) SignalGroup(sig syscall.Signal) error { return p.kill(-p.id.PID, sig) }

// Catches reports whether the process has a handler for sig now.
func (p *Process) Catches(sig syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.id.PID))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "\nSigCgt:")
	mask, _, _ := strings.Cut(rest, "\n")
	caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	return err == nil && caught>>(sig-1)&1 != 0
}

func (p *Process) kill(pid int, sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("cannot send %s to %s: %w", SignalName(sig), p.label, err)
	}
	return nil
}

// await blocks until the process is dead or let go, and takes its status. It runs in one goroutine per process, which
// costs no thread: a pidfd becomes readable in Go's poller when its process ends.
func (p *Process) await() {
	defer close(p.done)
	dead := p.waitDead()
	p.mu.Lock()
	p.exit = Exit{Code: -1, Started: p.exit.Started, Ended: time.Now()}
	if dead {
		p.reapLocked()
	}
	p.reaped = true
	p.mu.Unlock()
	if p.pidfd != nil {
		_ = p.pidfd.Close()
	}
	p.t.ended(p)
}

// waitDead returns true when the process is a zombie of ours, and false when Tree.Close let it go.
func (p *Process) waitDead() bool {
	if p.pidfd != nil {
		conn, err := p.pidfd.SyscallConn()
		if err == nil {
			err = conn.Read(func(fd uintptr) bool {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, _ := unix.Poll(fds, 0)
				return n > 0
			})
		}
		if err == nil {
			return true
		}
	}
	// Without a pidfd, or when Close closed it under us.
	select {
	case <-p.poke:
		return true
	case <-p.t.closing:
		return false
	}
}

func (p *Process) reapLocked() {
	var ws unix.WaitStatus
	var ru unix.Rusage
	for {
		_, err := unix.Wait4(p.id.PID, &ws, 0, &ru)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return // somebody else took the status; package comment
		}
	}
	switch {
	case ws.Exited():
		p.exit.Code = ws.ExitStatus()
	case ws.Signaled():
		p.exit.Signal, p.exit.CoreDumped = ws.Signal(), ws.CoreDump()
	}
	p.exit.UserTime, p.exit.SystemTime = time.Duration(ru.Utime.Nano()), time.Duration(ru.Stime.Nano())
	p.exit.MaxRSS = ru.Maxrss * 1024
}

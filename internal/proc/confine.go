package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Confinement describes a program that may hang, crash or write without end, because it calls into a driver, and that
// must do no harm then. It has a process group of its own, no input, and dies with us.
type Confinement struct {
	Path     string   // the file to execute
	Args     []string // the whole argument vector, the program's name first
	Env      []string // the whole environment, "NAME=VALUE"
	Deadline time.Duration
	Grace    time.Duration // how long it may take to die of SIGKILL before it is abandoned
	// MaxStdout and MaxStderr bound what is kept, in bytes. More on stdout gets the program killed; more on stderr is
	// read and dropped.
	MaxStdout, MaxStderr int
	// Started, where not nil, is called once the program was executed.
	Started func()
	// Line, where not nil, is called with each whole line of stdout, one after the other; nothing of it is kept then.
	// Deadline begins anew with each line, and MaxStdout bounds a single one.
	Line func(line []byte)
}

// Confined is what became of a confined program.
type Confined struct {
	PID            int
	Stdout, Stderr []byte
	Exit           Exit // zero where Abandoned is not nil or Lost is true
	Lost           bool // it has ended, and somebody else took its exit status
	TimedOut       bool // it ran at its deadline and was killed
	Flooded        bool // it was killed for what it wrote to stdout
	Canceled       bool // it was killed because ctx ended
	// Abandoned is not nil where SIGKILL did not end the program: it hangs in the kernel. It is left behind; the kernel
	// lets it go when what it waits for comes, or at the next boot.
	Abandoned *Abandoned
}

// Abandoned tells where in the kernel a process hangs.
type Abandoned struct {
	State string // its state letter in /proc/PID/stat, mostly "D"; "" where it could not be read
	Wchan string // the kernel function it sleeps in; "" where the kernel does not tell
}

// confinedLeftover is how long after a confined program's end its pipes may stay open in something that it started.
const confinedLeftover = 200 * time.Millisecond

// Confine runs a program in confinement and returns what became of it, at the latest a Grace and a little more after
// its Deadline; not even a program in uninterruptible sleep (state D) delays it, and one thread of ours waits for that
// one in the background. The error is not nil where the program could not be executed, and wraps what the kernel said.
//
// While a Tree is open it may take the exit status (Lost); nothing else of the answer suffers.
func Confine(ctx context.Context, c Confinement) (Confined, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return Confined{}, err
	}
	defer func() { _ = null.Close() }()
	outR, outW, err := os.Pipe()
	if err != nil {
		return Confined{}, err
	}
	defer func() { _ = outR.Close() }()
	errR, errW, err := os.Pipe()
	if err != nil {
		_ = outW.Close()
		return Confined{}, err
	}
	defer func() { _ = errR.Close() }()

	p := &confined{started: make(chan error, 1), ended: make(chan struct{})}
	go p.run(c, []uintptr{null.Fd(), outW.Fd(), errW.Fd()})
	err = <-p.started
	_, _ = outW.Close(), errW.Close()
	if err != nil {
		return Confined{}, err
	}
	if c.Started != nil {
		c.Started()
	}

	// A reader ends with the program and all that inherited its pipes, or when its pipe is closed here.
	var readers sync.WaitGroup
	stdout, stderr := &capped{max: c.MaxStdout, over: make(chan struct{})}, &capped{max: c.MaxStderr}
	if c.Line != nil {
		stdout.line, stdout.lines = c.Line, make(chan struct{}, 1)
	}
	readers.Go(func() { stdout.fill(outR) })
	readers.Go(func() { stderr.fill(errR) })

	deadline := time.NewTimer(c.Deadline)
	defer deadline.Stop()
	result := Confined{PID: p.pid}
	for said := true; said; {
		said = false
		select {
		case <-p.ended:
		case <-stdout.lines:
			said = true
			deadline.Reset(c.Deadline)
		case <-deadline.C:
			result.TimedOut = true
		case <-stdout.over:
			result.Flooded = true
		case <-ctx.Done():
			result.Canceled = true
		}
	}
	if p.kill() {
		grace := time.NewTimer(c.Grace)
		defer grace.Stop()
		select {
		case <-p.ended:
		case <-grace.C:
			result.Abandoned = whereabouts(p.pid)
		}
	} else {
		<-p.ended // in a moment
		result.TimedOut, result.Flooded, result.Canceled = false, false, false
	}
	// What it wrote is in the pipe already.
	end := time.Now().Add(confinedLeftover)
	_, _ = outR.SetReadDeadline(end), errR.SetReadDeadline(end)
	readers.Wait()
	result.Stdout, result.Stderr = stdout.kept, stderr.kept
	result.Flooded = result.Flooded || stdout.full
	if result.Abandoned == nil {
		result.Exit, result.Lost = p.exit, p.lost
	}
	return result, nil
}

// confined is the process of one Confine. Its goroutine is the only one that waits for it.
type confined struct {
	started chan error    // has room for the one answer
	ended   chan struct{} // closed when the process is dead and its status taken

	pid  int  // written before started is answered
	exit Exit // written before ended is closed, as lost is
	lost bool

	mu   sync.Mutex // while it is held and gone is false, the pid is the process's
	gone bool
}

// theConfined has the process ids of those that run: no Tree ends them with its workers.
var theConfined sync.Map

// run starts the process and waits for its end, for ever if need be. It holds its thread: the parent-death signal is
// sent when the thread that forked ends.
func (p *confined) run(c Confinement, files []uintptr) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	pid, err := forkExec(c.Path, c.Args, &syscall.ProcAttr{
		Env: c.Env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	p.pid = pid
	if err == nil {
		theConfined.Store(pid, struct{}{})
		defer theConfined.Delete(pid)
	}
	p.started <- err
	if err != nil {
		return
	}
	defer close(p.ended)
	for {
		// Looked at first and reaped under the lock, so that kill never meets another process of that number.
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Kill(-pid, unix.SIGKILL) // what it started and left in its group
	p.gone = true
	var ws unix.WaitStatus
	var ru unix.Rusage
	for {
		_, err = unix.Wait4(pid, &ws, 0, &ru)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		p.lost = true
		return
	}
	p.exit = Exit{
		Code: -1, Started: begin, Ended: time.Now(), MaxRSS: ru.Maxrss * 1024,
		UserTime: time.Duration(ru.Utime.Nano()), SystemTime: time.Duration(ru.Stime.Nano()),
	}
	switch {
	case ws.Exited():
		p.exit.Code = ws.ExitStatus()
	case ws.Signaled():
		p.exit.Signal, p.exit.CoreDumped = ws.Signal(), ws.CoreDump()
	}
}

// killConfined is replaced by tests that need a process which SIGKILL does not end.
var killConfined = unix.Kill

// kill sends SIGKILL to the process group; false means that the process has ended already.
func (p *confined) kill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	_ = killConfined(-p.pid, unix.SIGKILL) // it is there; nothing else can be done if it may not be killed
	return true
}

// whereabouts reads where a process hangs. The files may be read while it does. The thread that hangs need not be the
// first one, which is a zombie then.
func whereabouts(pid int) *Abandoned {
	var a Abandoned
	hangs := pid
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none of a process that has ended meanwhile
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if st, err := statOf(tid); err == nil && st.state == 'D' {
			hangs = tid
		}
	}
	if st, err := statOf(hangs); err == nil {
		a.State = string(rune(st.state))
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", hangs)); err == nil && string(b) != "0" {
		a.Wchan = strings.ToValidUTF8(string(b), "?")
	}
	return &a
}

// capped keeps the first max bytes that it reads.
type capped struct {
	max  int
	over chan struct{} // closed at the first byte too many; nil: those are dropped
	kept []byte
	full bool // there was more
	// line is called with each line in place of its being kept; lines has room for the news that there was one.
	line  func([]byte)
	lines chan struct{}
}

func (b *capped) fill(r *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		b.keep(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) { // that Confine has set: on a busy machine nothing may have been read before
			b.drain(r, buf)
		}
		if err != nil {
			return
		}
	}
}

// drain reads what is in a pipe now, as much of it as is kept.
func (b *capped) drain(r *os.File, buf []byte) {
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { // without a deadline, and without waiting
		for !b.full {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			b.keep(buf[:n])
		}
	})
}

// keep keeps what was read, as far as there is room.
func (b *capped) keep(read []byte) {
	for b.line != nil {
		end := bytes.IndexByte(read, '\n')
		if end < 0 {
			break
		}
		b.line(append(b.kept, read[:end]...))
		b.kept, read = b.kept[:0], read[end+1:]
		select {
		case b.lines <- struct{}{}:
		default: // it is known
		}
	}
	room := min(len(read), b.max-len(b.kept))
	b.kept = append(b.kept, read[:room]...)
	if room < len(read) && !b.full {
		b.full = true
		if b.over != nil {
			close(b.over)
		}
	}
}

package output

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// errCalledOff is returned by a sink whose write was called off while it waited for the reader.
var errCalledOff = errors.New("write called off")

// sink takes the bytes of a console.
type sink interface {
	// write writes all of p, waiting for a slow reader until done is closed.
	write(p []byte, done <-chan struct{}) error
	// taken counts the bytes that were taken so far; any goroutine may ask.
	taken() int64
	close() error
}

// fileDescriptor returns the descriptor behind w, where there is one. SyscallConn and not Fd: Fd may switch the open
// file, which other processes share, to blocking mode.
func fileDescriptor(w any) (int, bool) {
	conn, ok := w.(syscall.Conn)
	if !ok {
		return -1, false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, false
	}
	number := -1
	if raw.Control(func(fd uintptr) { number = int(fd) }) != nil {
		return -1, false
	}
	return number, true
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// OnTerminal reports whether w is a terminal.
func OnTerminal(w any) bool {
	fd, ok := fileDescriptor(w)
	return ok && isTerminal(fd)
}

// newSink returns the sink for w and whether it is a terminal.
func newSink(w io.Writer) (sink, bool) {
	fd, ok := fileDescriptor(w)
	if !ok {
		return &writerSink{w: w}, false
	}
	return newFDSink(fd), isTerminal(fd)
}

type writerSink struct {
	w     io.Writer
	count atomic.Int64
}

func (s *writerSink) write(p []byte, _ <-chan struct{}) error {
	n, err := s.w.Write(p)
	s.count.Add(int64(n))
	return err
}

func (s *writerSink) taken() int64 { return s.count.Load() }

func (s *writerSink) close() error { return nil }

// fdSink writes to a descriptor without ever being stuck in a system call: a stopped terminal (Ctrl-S) or a pipe that
// nobody reads must not keep us from ending. It asks the kernel for an open file of its own, non-blocking, by way of
// /proc/self/fd; to set O_NONBLOCK on the one we were given would set it for the shell and everybody else who shares
// it. System calls and not os.File, because os.File ends the process at EPIPE on descriptors 1 and 2.
type fdSink struct {
	fd    int
	owned bool
	// most is what one write may take without a chance to block, 0 for no such limit.
	most  int
	count atomic.Int64
}

func (s *fdSink) taken() int64 { return s.count.Load() }

func newFDSink(fd int) *fdSink {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return &fdSink{fd: fd} // a file does not block, and a second open file would have an offset of its own
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	own, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		return &fdSink{fd: own, owned: true}
	}
	// A socket, or a terminal or pipe of another user: wait until it can take something, and then give it no more than
	// that. A pipe that polls as writable has room for PIPE_BUF bytes (4096 on Linux, pipe(7)).
	return &fdSink{fd: fd, most: 4096}
}

func (s *fdSink) write(p []byte, done <-chan struct{}) error {
	for len(p) > 0 {
		part := p
		if s.most > 0 {
			if err := s.wait(done); err != nil {
				return err
			}
			part = p[:min(len(p), s.most)]
		}
		n, err := unix.Write(s.fd, part)
		switch {
		case n > 0:
			p = p[n:]
			s.count.Add(int64(n))
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if err := s.wait(done); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			return io.ErrShortWrite
		}
	}
	return nil
}

// wait returns when the descriptor takes bytes again, or has an error to tell, or done was closed.
func (s *fdSink) wait(done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return errCalledOff
		default:
		}
		// Woken ten times a second to look at done, and only while somebody keeps us waiting.
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, 100)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

func (s *fdSink) close() error {
	if !s.owned {
		return nil
	}
	return unix.Close(s.fd)
}

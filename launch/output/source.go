package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pipeBytes is what we ask for as the capacity of a worker's pipe: the most that Linux gives without privilege.
	pipeBytes = 1 << 20
	// A worker that writes line by line is read from at most once per pause; the lines that came meanwhile are handled
	// together, at a fraction of the cost. A stream that was quiet for busyTime is read at once.
	pause    = time.Millisecond
	busyTime = 2 * time.Millisecond
	// pollTime is the pace of looking at a file where inotify is not to be had.
	pollTime = 50 * time.Millisecond
)

// errIdle is returned by a source from which nothing came for the time given.
var errIdle = errors.New("nothing to read")

// source is where a stream's bytes come from. read is called by one goroutine, stop by any.
type source interface {
	// read returns at least one byte, or errIdle when there was none for d (negative: any time), or io.EOF at the end.
	read(p []byte, d time.Duration) (int, error)
	// stop makes the end come when what is there now has been read, even if somebody could still write more.
	stop()
	// close frees what the source holds; nobody reads any more.
	close()
}

// pipeSource reads a pipe that a worker, and whatever it has started, writes to.
type pipeSource struct {
	fd   int
	poll *pipePoller
	wake chan struct{}
	// small is how much a read must bring to be followed by the next without a pause.
	small    int
	lastRead time.Time
	pausing  bool

	stopOnce sync.Once
	stopped  chan struct{}
	// left is what is still taken after stop, negative before the reader has seen that.
	left int

	// asks brings channels that are to be closed when all was read that had been written; asked is one that was not
	// yet.
	asks  chan chan struct{}
	asked chan struct{}
	ended chan struct{} // closed when nobody reads any more
}

// openPipe returns a pipe's source and its writing end, which is for the child: it blocks, as every program expects of
// its standard output, and only our end does not.
func openPipe(poll *pipePoller) (*pipeSource, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	capacity, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes)
	if err != nil { // over the user's limit (fs.pipe-user-pages-soft): it stays as small as it is
		if capacity, err = unix.FcntlInt(uintptr(fds[0]), unix.F_GETPIPE_SZ, 0); err != nil {
			capacity = unix.Getpagesize()
		}
	}
	s := &pipeSource{
		fd: fds[0], poll: poll, wake: make(chan struct{}, 1), small: min(capacity/8, pumpBytes/4),
		stopped: make(chan struct{}), left: -1, asks: make(chan chan struct{}), ended: make(chan struct{}),
	}
	if err = unix.SetNonblock(fds[0], true); err == nil {
		err = poll.add(s.fd, s.wake)
	}
	if err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, fmt.Errorf("cannot watch a pipe: %w", err)
	}
	return s, os.NewFile(uintptr(fds[1]), "worker output"), nil
}

func (s *pipeSource) read(p []byte, d time.Duration) (int, error) {
	var idle <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		idle = timer.C
	}
	armed := false
	for {
		if s.pausing {
			s.pausing = false
			time.Sleep(pause)
		}
		n, err := s.readNow(p)
		if n > 0 || err != nil {
			return n, err
		}
		if s.asked != nil {
			close(s.asked) // what was read before has been remembered: the reader came back
			s.asked = nil
		}
		if time.Since(s.lastRead) < busyTime {
			s.pausing = true
			continue
		}
		if !armed {
			if err := s.poll.arm(s.fd); err != nil {
				return 0, err
			}
			armed = true
		}
		select {
		case <-s.wake:
			armed = false
		case s.asked = <-s.asks: // something may have been written meanwhile
		case <-s.stopped:
		case <-idle:
			return 0, errIdle
		}
	}
}

// caughtUp waits until the reader has taken what was in the pipe when it was called, or until gaveUp.
func (s *pipeSource) caughtUp(gaveUp <-chan struct{}) {
	done := make(chan struct{})
	select {
	case s.asks <- done:
	case <-s.ended:
		return
	case <-gaveUp:
		return
	}
	select {
	case <-done:
	case <-s.ended:
	case <-gaveUp:
	}
}

// readNow reads without waiting; 0 and nil when there is nothing yet.
func (s *pipeSource) readNow(p []byte) (n int, err error) {
	if s.left < 0 {
		select {
		case <-s.stopped:
			if s.left, err = unix.IoctlGetInt(s.fd, unix.TIOCINQ); err != nil {
				return 0, err
			}
		default:
		}
	}
	if s.left >= 0 {
		if p = p[:min(len(p), s.left)]; len(p) == 0 {
			return 0, io.EOF
		}
	}
	for {
		n, err = unix.Read(s.fd, p)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == unix.EAGAIN && s.left < 0:
		return 0, nil
	case err == unix.EAGAIN || err == nil && n == 0:
		return 0, io.EOF
	case err != nil:
		return 0, err
	}
	if s.left >= 0 {
		s.left -= n
	}
	now := time.Now()
	s.pausing = n < s.small && now.Sub(s.lastRead) < busyTime
	s.lastRead = now
	return n, nil
}

func (s *pipeSource) stop() { s.stopOnce.Do(func() { close(s.stopped) }) }

func (s *pipeSource) close() {
	close(s.ended)
	s.poll.remove(s.fd)
	_ = unix.Close(s.fd) // only read
}

// fileSource follows a file that a worker writes itself. A reader that falls behind costs nobody anything: the file
// holds what it has not seen yet.
type fileSource struct {
	f        *os.File
	off      int64
	lastRead time.Time

	watch *watcher // nil: look at the file every pollTime
	wake  chan struct{}
	wd    int32
	armed bool

	stopOnce sync.Once
	stopped  chan struct{}
	// end is where the file is read to after stop, negative before the reader has seen that.
	end int64
}

// followFile opens path, which exists, for a follower from its start.
func followFile(path string, watch *watcher) (*fileSource, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &fileSource{f: f, watch: watch, wake: make(chan struct{}, 1), stopped: make(chan struct{}), end: -1}, nil
}

func (s *fileSource) read(p []byte, d time.Duration) (int, error) {
	var idle <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		idle = timer.C
	}
	for {
		n, err := s.readNow(p)
		if n > 0 || err != nil {
			return n, err
		}
		if time.Since(s.lastRead) < busyTime {
			time.Sleep(pause) // the worker is busy writing: more will be there without watching
			continue
		}
		var poll <-chan time.Time
		switch {
		case s.armed:
		case s.watch != nil:
			if s.wd, err = s.watch.arm(s.f, s.wake); err == nil {
				s.armed = true
				continue // something may have been written before
			}
			s.watch = nil // no watches left, or no /proc
			continue
		default:
			poll = time.After(pollTime)
		}
		select {
		case <-s.wake:
			s.armed = false
		case <-poll:
		case <-s.stopped:
		case <-idle:
			return 0, errIdle
		}
	}
}

// readNow reads without waiting; 0 and nil when there is nothing yet.
func (s *fileSource) readNow(p []byte) (int, error) {
	if s.end < 0 {
		select {
		case <-s.stopped:
			info, err := s.f.Stat()
			if err != nil {
				return 0, err
			}
			s.end = info.Size()
		default:
		}
	}
	if s.end >= 0 {
		p = p[:max(0, min(int64(len(p)), s.end-s.off))]
		if len(p) == 0 {
			return 0, io.EOF
		}
	}
	n, err := s.f.ReadAt(p, s.off)
	if n > 0 {
		s.off += int64(n)
		s.lastRead = time.Now()
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return 0, err
	}
	if s.end >= 0 {
		return 0, io.EOF // it became shorter
	}
	if info, err := s.f.Stat(); err == nil && info.Size() < s.off {
		s.off = 0 // emptied by a log rotator; the worker goes on at its new end
	}
	return 0, nil
}

func (s *fileSource) stop() { s.stopOnce.Do(func() { close(s.stopped) }) }

func (s *fileSource) close() {
	if s.armed {
		s.watch.disarm(s.wd, s.wake)
	}
	_ = s.f.Close() // only read
}

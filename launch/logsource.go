package launch

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
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
	r *os.File
	// small is how much a read must bring to be followed by the next without a pause.
	small    int
	lastRead time.Time
	stopping atomic.Bool
	// draining and left belong to the reader: what is still taken after stop.
	draining bool
	left     int
}

// openPipe returns a pipe's source and its writing end, which is for the child: it blocks, as every program expects of
// its standard output, and only our end does not.
func openPipe() (*pipeSource, *os.File, error) {
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
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	s := &pipeSource{r: os.NewFile(uintptr(fds[0]), "worker output"), small: min(capacity/8, pumpBytes/4)}
	return s, os.NewFile(uintptr(fds[1]), "worker output"), nil
}

func (s *pipeSource) read(p []byte, d time.Duration) (int, error) {
	if s.stopping.Load() {
		return s.drain(p)
	}
	var limit time.Time
	if d >= 0 {
		limit = time.Now().Add(d)
	}
	if err := s.r.SetReadDeadline(limit); err != nil {
		return 0, err
	}
	if s.stopping.Load() { // stop's deadline may have been the one just overwritten
		return s.drain(p)
	}
	n, err := s.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if s.stopping.Load() {
			return s.drain(p)
		}
		return 0, errIdle
	}
	now := time.Now()
	if err == nil && n < s.small && now.Sub(s.lastRead) < busyTime {
		time.Sleep(pause)
	}
	s.lastRead = now
	return n, err
}

// drain reads without waiting what was in the pipe when it was called first.
func (s *pipeSource) drain(p []byte) (n int, err error) {
	conn, err := s.r.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := s.r.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	again := conn.Read(func(fd uintptr) bool {
		if !s.draining {
			s.draining = true
			s.left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		}
		if err == nil && s.left > 0 {
			n, err = unix.Read(int(fd), p[:min(len(p), s.left)])
		}
		return true
	})
	if err = errors.Join(err, again); err != nil {
		return 0, err
	}
	if n <= 0 {
		return 0, io.EOF
	}
	s.left -= n
	return n, nil
}

func (s *pipeSource) stop() {
	s.stopping.Store(true)
	_ = s.r.SetReadDeadline(time.Unix(1, 0)) // wakes the reader; fails when it is closed already
}

func (s *pipeSource) close() { _ = s.r.Close() }

// fileSource follows a file that a worker writes itself. A reader that falls behind costs nobody anything: the file holds
// what it has not seen yet.
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

package output

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells followers that their file was written to. It uses inotify with watches that fire once: as long as a
// follower has something to read, its file is not watched, and writing to it costs the worker nothing extra.
type watcher struct {
	file *os.File
	fd   int
	done chan struct{}

	mu     sync.Mutex
	closed bool
	// waiting are those to wake by watch descriptor. The kernel gives one descriptor per inode, so that two followers
	// of one file share it.
	waiting map[int32][]chan struct{}
}

// openWatcher starts the goroutine that close ends. It fails where the user has no inotify instance left
// (fs.inotify.max_user_instances, 128 by default).
func openWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch files: %w", err)
	}
	w := &watcher{
		file: os.NewFile(uintptr(fd), "inotify"), fd: fd,
		done: make(chan struct{}), waiting: map[int32][]chan struct{}{},
	}
	go w.run()
	return w, nil
}

func (w *watcher) run() {
	defer close(w.done)
	buf := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return // closed
		}
		// Watches on files have events without a name, so all are of one size.
		for events := buf[:n]; len(events) >= unix.SizeofInotifyEvent; events = events[unix.SizeofInotifyEvent:] {
			w.wake(int32(binary.NativeEndian.Uint32(events)))
		}
	}
}

// wake wakes who waits for descriptor wd; everybody for -1, which the kernel sends when it had to drop events.
func (w *watcher) wake(wd int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d, all := range w.waiting {
		if wd != -1 && d != wd {
			continue
		}
		for _, c := range all {
			select {
			case c <- struct{}{}: // has room for one
			default:
			}
		}
		delete(w.waiting, d)
	}
}

// arm has c, which has room for one, sent to at the next write to f. Look at the file again after arm.
func (w *watcher) arm(f *os.File, c chan struct{}) (wd int32, err error) {
	fd, ok := fileDescriptor(f)
	if !ok {
		return 0, os.ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, os.ErrClosed
	}
	// By descriptor: the path may have been renamed by a log rotator.
	n, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), unix.IN_MODIFY|unix.IN_ONESHOT)
	if err != nil {
		return 0, fmt.Errorf("cannot watch %q: %w", f.Name(), err)
	}
	w.waiting[int32(n)] = append(w.waiting[int32(n)], c)
	return int32(n), nil
}

// disarm forgets that c waits for wd.
func (w *watcher) disarm(wd int32, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var others []chan struct{}
	for _, other := range w.waiting[wd] {
		if other != c {
			others = append(others, other)
		}
	}
	if len(others) > 0 {
		w.waiting[wd] = others
		return
	}
	if _, armed := w.waiting[wd]; armed && !w.closed {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // fails when it has just fired
	}
	delete(w.waiting, wd)
}

func (w *watcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.file.Close()
	<-w.done
	return err
}

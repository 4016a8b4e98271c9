package output

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pipePoller tells readers that their pipe has something for them. It has an epoll of its own with one-shot interest,
// because Go's stays interested all the time: each write of a worker would then wake a thread of ours, which costs the
// worker more than the write.
type pipePoller struct {
	file *os.File // the epoll; it is itself waited for by Go's
	fd   int
	done chan struct{}

	mu      sync.Mutex
	readers map[int32]chan struct{}
}

// openPipePoller starts the goroutine that close ends.
func openPipePoller() (*pipePoller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch pipes: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // makes os.File wait for it
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot watch pipes: %w", err)
	}
	p := &pipePoller{
		file: os.NewFile(uintptr(fd), "epoll"), fd: fd,
		done: make(chan struct{}), readers: map[int32]chan struct{}{},
	}
	go p.run()
	return p, nil
}

func (p *pipePoller) run() {
	defer close(p.done)
	conn, err := p.file.SyscallConn()
	if err != nil {
		return // closed
	}
	events := make([]unix.EpollEvent, 64)
	for {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return // closed
		}
		p.wake(events[:n])
	}
}

func (p *pipePoller) wake(events []unix.EpollEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		select {
		case p.readers[e.Fd] <- struct{}{}: // has room for one
		default:
		}
	}
}

// add makes c, which has room for one, the channel of fd, but does not look at fd yet.
func (p *pipePoller) add(fd int, c chan struct{}) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers[int32(fd)] = c
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Events: unix.EPOLLONESHOT})
}

// arm has the channel of fd sent to once, when fd can be read or is at its end.
func (p *pipePoller) arm(fd int) error {
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Fd: int32(fd), Events: unix.EPOLLIN | unix.EPOLLONESHOT})
}

// remove is called before fd is closed.
func (p *pipePoller) remove(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.readers, int32(fd))
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) // closing it would do the same
}

// close is called after every reader was removed.
func (p *pipePoller) close() error {
	err := p.file.Close()
	<-p.done
	return err
}

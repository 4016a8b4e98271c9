package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// load is many clients of one store in one thread: on two cores the generator must cost less than what it measures.
type load struct {
	addr    netip.AddrPort
	source  func(i int) netip.Addr // where client i comes from
	epfd    int
	clients []client
	ready   int // clients whose handshake and first ADD are done
	left    int // clients whose barrier is not open yet
	events  []unix.EpollEvent
	buf     []byte
}

// client is one connection with one request outstanding.
type client struct {
	fd   int
	step step
	need int // bytes that are still to come of the answer
	sets [2][]byte
	asks [2][]byte
}

type step uint8

const (
	connecting step = iota
	pinging
	joining // ADD init/
	idle
	adding
	waiting
	getting
	barring
)

const (
	inFlight  = 512 // connections being opened at a time, fewer than a backlog takes
	valueSize = 32
)

func newLoad(addr netip.AddrPort, source func(i int) netip.Addr) (*load, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create an epoll descriptor: %w", err)
	}
	return &load{addr: addr, source: source, epfd: epfd, events: make([]unix.EpollEvent, 512), buf: make([]byte, 4096)}, nil
}

func (l *load) close() {
	for i := range l.clients {
		_ = unix.Close(l.clients[i].fd)
	}
	_ = unix.Close(l.epfd)
}

func str(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// open brings the number of clients to n, until the deadline, and returns how long that took. Each does what a worker
// of PyTorch does first: connect, handshake, ADD init/.
func (l *load) open(n int, deadline time.Time) (time.Duration, error) {
	start := time.Now()
	for len(l.clients) < n {
		l.clients = append(l.clients, client{fd: -1})
	}
	next := l.ready
	for l.ready < n {
		for next < n && next-l.ready < inFlight {
			if err := l.connect(next); err != nil {
				return 0, err
			}
			next++
		}
		if err := l.poll(deadline); err != nil {
			return time.Since(start), fmt.Errorf("%d of %d clients connected: %w", l.ready, n, err)
		}
	}
	return time.Since(start), nil
}

func (l *load) connect(i int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open client %d: %w", i, err)
	}
	c := &l.clients[i]
	c.fd, c.step = fd, connecting
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("cannot set up client %d: %w", i, err)
	}
	if l.source != nil {
		// The port is chosen with the destination known, which leaves all of them to each address.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return fmt.Errorf("cannot set up client %d: %w", i, err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: l.source(i).As4()}); err != nil {
			return fmt.Errorf("cannot bind client %d: %w", i, err)
		}
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(l.addr.Port()), Addr: l.addr.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("cannot connect client %d: %w", i, err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(i)}
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &ev)
}

var errLate = errors.New("time is up")

func (l *load) poll(deadline time.Time) error {
	left := time.Until(deadline)
	if left <= 0 {
		return errLate
	}
	n, err := unix.EpollWait(l.epfd, l.events, int(left/time.Millisecond)+1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("cannot wait for events: %w", err)
	}
	for i := range max(n, 0) {
		c := &l.clients[l.events[i].Fd]
		if err := l.handle(c, l.events[i].Events); err != nil {
			return fmt.Errorf("client %d: %w", l.events[i].Fd, err)
		}
	}
	return nil
}

func (l *load) handle(c *client, events uint32) error {
	if c.step == connecting {
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			return errors.New("connection refused or reset")
		}
		if events&unix.EPOLLOUT != 0 {
			c.step, c.need = pinging, 4
			return c.send([]byte("\x00\xce\xf7\x85\x3c\x0dping"))
		}
		return nil
	}
	if events&unix.EPOLLIN == 0 {
		return nil
	}
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&l.buf[0])), uintptr(len(l.buf)), 0, 0, 0)
	if e == unix.EAGAIN {
		return nil
	}
	if e != 0 || n == 0 {
		return errors.New("connection closed by the server")
	}
	if c.need -= int(n); c.need > 0 {
		return nil
	}
	if c.need < 0 {
		return errors.New("answer longer than expected")
	}
	switch c.step {
	case pinging:
		c.step, c.need = joining, 8
		return c.send([]byte("\x04\x05\x00\x00\x00\x00\x00\x00\x00init/\x01\x00\x00\x00\x00\x00\x00\x00"))
	case joining:
		c.step = idle
		l.ready++
	case adding:
		c.step, c.need = waiting, 1
		return c.send(c.asks[0])
	case waiting:
		c.step, c.need = getting, 8+valueSize
		return c.send(c.asks[1])
	case getting:
		c.step = idle
	case barring:
		if l.buf[0] != 0 {
			return fmt.Errorf("barrier answers %d", l.buf[0])
		}
		c.step = idle
		l.left--
	default:
		return errors.New("answer without request")
	}
	return nil
}

// barrier has every client enter the barrier key, and returns how long it takes until the last one is out.
func (l *load) barrier(key string, deadline time.Time) (time.Duration, error) {
	request := binary.LittleEndian.AppendUint64(str([]byte{18}, key), uint64(len(l.clients)))
	start := time.Now()
	l.left = len(l.clients)
	for i := range l.clients {
		c := &l.clients[i]
		c.step, c.need = barring, 1
		if err := c.send(request); err != nil {
			return 0, fmt.Errorf("client %d: %w", i, err)
		}
	}
	for l.left > 0 {
		if err := l.poll(deadline); err != nil {
			return time.Since(start), fmt.Errorf("%d of %d clients are still in the barrier: %w", l.left, len(l.clients), err)
		}
	}
	return time.Since(start), nil
}

// prepare makes the requests of client i.
func (c *client) prepare(i int) {
	key, count := fmt.Sprintf("/k%d", i), fmt.Sprintf("/a%d", i)
	c.sets[0] = str(str([]byte{1}, key), string(make([]byte, valueSize)))
	c.sets[1] = append(str([]byte{4}, count), 1, 0, 0, 0, 0, 0, 0, 0)
	c.asks[0] = str([]byte{6, 1, 0, 0, 0, 0, 0, 0, 0}, key)
	c.asks[1] = str([]byte{3}, key)
}

// begin sends a SET, as PyTorch's clients do in a segment of its own, and an ADD; WAIT and GET follow their answers.
func (c *client) begin() error {
	c.step, c.need = adding, 8
	if err := c.send(c.sets[0]); err != nil {
		return err
	}
	return c.send(c.sets[1])
}

func (c *client) send(b []byte) error {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 || int(n) != len(b) {
		return fmt.Errorf("cannot send a request: %w", e)
	}
	return nil
}

// mix runs sets, adds and gets, a third each, on every client for the given time, and returns how many were answered.
func (l *load) mix(d time.Duration) (ops int, err error) {
	for i := range l.clients {
		l.clients[i].prepare(i)
	}
	for i := range l.clients {
		if err := l.clients[i].begin(); err != nil {
			return 0, err
		}
	}
	end := time.Now().Add(d)
	limit := end.Add(30 * time.Second)
	busy := len(l.clients)
	for busy > 0 {
		n, err := unix.EpollWait(l.epfd, l.events, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("cannot wait for events: %w", err)
		}
		now := time.Now()
		if now.After(limit) {
			return 0, fmt.Errorf("%d clients get no answer: %w", busy, errLate)
		}
		for i := range max(n, 0) {
			c := &l.clients[l.events[i].Fd]
			if err := l.handle(c, l.events[i].Events); err != nil {
				return 0, fmt.Errorf("client %d: %w", l.events[i].Fd, err)
			}
			if c.step != idle || l.events[i].Events&unix.EPOLLIN == 0 {
				continue
			}
			ops += 3
			if now.After(end) {
				busy--
				continue
			}
			if err := c.begin(); err != nil {
				return 0, err
			}
		}
	}
	return ops, nil
}

package kv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Doors is a listener on one port of several addresses of this machine. Which ones is known only when hosts are: each
// host of an elastic job gets the address by which it reaches this machine, and no other is listened on. It begins with
// none.
type Doors struct {
	port  int
	hold  int // a socket that keeps the port from others on all addresses; it does not listen
	conns chan net.Conn
	ended chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu     sync.Mutex
	open   map[netip.Addr]net.Listener
	closed bool
}

// NewDoors finds a port that nobody has on any address.
func NewDoors() (*Doors, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		// With this, sockets of this user that have it too may listen on the same port, and no other user's: with
		// SO_REUSEADDR everybody's could.
		if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{})
		}
		var name unix.Sockaddr
		if err == nil {
			name, err = unix.Getsockname(fd)
		}
		if at, ok := name.(*unix.SockaddrInet4); ok && err == nil {
			return &Doors{
				port: at.Port, hold: fd, conns: make(chan net.Conn), ended: make(chan struct{}),
				open: map[netip.Addr]net.Listener{},
			}, nil
		}
		_ = unix.Close(fd)
	}
	return nil, fmt.Errorf("cannot serve the rendezvous of Horovod's workers: cannot find a free port: %w", os.NewSyscallError("bind", err))
}

// Port is the port on every address.
func (d *Doors) Port() int { return d.port }

// Open listens on an address of this machine, too. It may be called again.
func (d *Doors) Open(ctx context.Context, addr netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.open[addr]; ok || d.closed {
		return nil
	}
	l, err := listen(ctx, addr.String(), d.port, func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, failed)
	})
	if err != nil {
		return err
	}
	d.open[addr] = l
	d.wg.Go(func() { d.accept(l) })
	return nil
}

// acceptPause is how long is waited where this process is out of descriptors.
const acceptPause = 50 * time.Millisecond

func (d *Doors) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(acceptPause):
				continue
			case <-d.ended:
				return
			}
		}
		select {
		case d.conns <- conn:
		case <-d.ended:
			_ = conn.Close()
			return
		}
	}
}

// Accept implements net.Listener.
func (d *Doors) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.ended:
		return nil, net.ErrClosed
	}
}

// Close stops listening. It may be called again.
func (d *Doors) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.ended)
	var errs []error
	for _, l := range d.open {
		errs = append(errs, l.Close())
	}
	errs = append(errs, unix.Close(d.hold))
	d.mu.Unlock()
	d.wg.Wait()
	return errors.Join(errs...)
}

// Addr implements net.Listener: the port, on no address in particular.
func (d *Doors) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: d.port} }

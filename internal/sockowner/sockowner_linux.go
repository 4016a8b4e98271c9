// Package sockowner tells whose the other end of a TCP connection within this machine is: addresses have no users, but
// the kernel knows of each socket who made it. Connections from other machines are not its matter.
package sockowner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errUnknown says that the kernel cannot tell, such as one without sock_diag.
var errUnknown = errors.New("the kernel does not tell whose a connection is")

// errGone says that the other end is not open any more: nobody is there who could say anything.
var errGone = errors.New("the other end of the connection is gone")

// Asker asks the kernel. It is safe for concurrent use. The zero value is ready; it opens a socket when it is first
// asked.
type Asker struct {
	mu     sync.Mutex
	fd     int
	opened bool
	seq    uint32
	proven bool // the kernel has told of a connection
}

// Close closes the socket.
func (a *Asker) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened {
		_ = unix.Close(a.fd)
		a.opened = false
	}
}

// The numbers of linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
const (
	sockDiagByFamily = 20
	requestBytes     = 56 // struct inet_diag_req_v2
	answerBytes      = 72 // struct inet_diag_msg
	atUID, atInode   = 64, 68
	headerBytes      = 16
)

// Owner returns the user who made the socket at from, which is connected to to. Both ends lie on this machine.
func (a *Asker) Owner(from, to netip.AddrPort) (uid uint32, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid, err = a.askLocked(from, to, 0)
	if errors.Is(err, errGone) && from.Addr().Is6() && from.Addr().IsLinkLocalUnicast() { // such a socket belongs to an interface
		ifaces, _ := net.Interfaces()
		for i := 0; i < len(ifaces) && errors.Is(err, errGone); i++ {
			uid, err = a.askLocked(from, to, ifaces[i].Index)
		}
	}
	if errors.Is(err, errGone) && !a.proven {
		if err := a.proveLocked(); err != nil {
			return 0, err
		}
	}
	return uid, err
}

// proveLocked asks for a connection of our own, which is there: a kernel that cannot tell of any answers as for one
// that is gone.
func (a *Asker) proveLocked() error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr)) //nolint:forcetypeassert // a listener of TCP
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	defer func() { _ = conn.Close() }()
	from, to := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr) //nolint:forcetypeassert // as above
	if _, err := a.askLocked(from.AddrPort(), to.AddrPort(), 0); err != nil {
		return fmt.Errorf("%w: it does not know a connection of our own (%s)", errUnknown,
			err) //nolint:errorlint // errGone is of another one
	}
	return nil
}

func (a *Asker) askLocked(from, to netip.AddrPort, iface int) (uid uint32, err error) {
	if !a.opened {
		if a.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG); err != nil {
			return 0, fmt.Errorf("%w: %w", errUnknown, err)
		}
		a.opened = true
	}
	a.seq++
	if err := unix.Sendto(a.fd, request(a.seq, from, to, iface), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("%w: %w", errUnknown, err)
	}
	var buf [4096]byte
	for {
		n, _, err := unix.Recvfrom(a.fd, buf[:], unix.MSG_DONTWAIT) // it has answered before Sendto returned
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("%w: %w", errUnknown, err)
		case n < headerBytes:
			return 0, fmt.Errorf("%w: it answers with %d bytes", errUnknown, n)
		}
		if order.Uint32(buf[8:]) != a.seq {
			continue // the answer to a question that was given up
		}
		uid, err := parse(buf[:n])
		a.proven = a.proven || err == nil
		return uid, err
	}
}

var order = binary.NativeEndian

// request asks for one connection, by its two ends, and the interface that its socket belongs to; 0 for any.
func request(seq uint32, from, to netip.AddrPort, iface int) []byte {
	b := make([]byte, headerBytes+requestBytes)
	order.PutUint32(b, uint32(len(b)))
	order.PutUint16(b[4:], sockDiagByFamily)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST)
	order.PutUint32(b[8:], seq)
	r := b[headerBytes:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	order.PutUint32(r[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(r[8:], from.Port())
	binary.BigEndian.PutUint16(r[10:], to.Port())
	source, target := from.Addr().Unmap(), to.Addr().Unmap()
	if source.Is6() {
		r[0] = unix.AF_INET6
	}
	copy(r[12:], source.AsSlice())
	copy(r[28:], target.AsSlice())
	order.PutUint32(r[44:], uint32(iface))
	for i := 48; i < 56; i++ { // no cookie
		r[i] = 0xff
	}
	return b
}

// parse reads an answer.
func parse(b []byte) (uint32, error) {
	switch kind := order.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR && len(b) >= headerBytes+4:
		if e := unix.Errno(-int32(order.Uint32(b[headerBytes:]))); e == unix.ENOENT {
			return 0, errGone
		} else if e != 0 {
			return 0, fmt.Errorf("%w: %w", errUnknown, e)
		}
		return 0, fmt.Errorf("%w: it answers nothing", errUnknown)
	case kind != sockDiagByFamily || len(b) < headerBytes+answerBytes:
		return 0, fmt.Errorf("%w: it answers with a message of type %d", errUnknown, kind)
	}
	m := b[headerBytes:]
	if order.Uint32(m[atInode:]) == 0 { // no process has it any more: the kernel says user 0 then
		return 0, errGone
	}
	return order.Uint32(m[atUID:]), nil
}

// Ours reports whether a connection that came from from to to may be served: its other end is on another machine, or it
// belongs to this user or to root. Where the kernel cannot tell it is served, and err says why. One loopback address is
// enough for both ends to be here: a process may have any address of its machine at its end, and reach 127.0.0.1 by it.
func (a *Asker) Ours(from, to netip.AddrPort) (ours bool, uid uint32, err error) {
	if !here(from.Addr(), to.Addr()) {
		return true, 0, nil
	}
	uid, err = a.Owner(from, to)
	switch {
	case errors.Is(err, errUnknown):
		return true, 0, err
	case err != nil: // it is gone
		return false, 0, err
	}
	return uid == uint32(os.Geteuid()) || uid == 0, uid, nil
}

// here reports whether a connection from from to to comes from this machine: who is on it may take any of its
// addresses, and reaches loopback from each of them.
func here(from, to netip.Addr) bool {
	from, to = from.Unmap().WithZone(""), to.Unmap().WithZone("")
	if from.IsLoopback() || to.IsLoopback() || from == to {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		ip, is := a.(*net.IPNet)
		return is && ip.IP.Equal(from.AsSlice())
	})
}

// Ends returns both ends of a connected socket of TCP.
func Ends(fd int) (remote, local netip.AddrPort, err error) {
	var sa unix.RawSockaddrAny
	for i, call := range []uintptr{unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME} {
		size := uint32(unsafe.Sizeof(sa))
		if _, _, e := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size))); e != 0 {
			return remote, local, e
		}
		var end netip.AddrPort
		switch sa.Addr.Family {
		case unix.AF_INET:
			in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
			end = netip.AddrPortFrom(netip.AddrFrom4(in.Addr), bigEndian(in.Port))
		case unix.AF_INET6:
			in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&sa))
			end = netip.AddrPortFrom(netip.AddrFrom16(in.Addr), bigEndian(in.Port))
		}
		if i == 0 {
			remote = end
		} else {
			local = end
		}
	}
	return remote, local, nil
}

func bigEndian(port uint16) uint16 {
	var b [2]byte
	order.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

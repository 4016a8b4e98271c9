package netprobe

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// isTooBig says that a datagram is larger than the interface, or than something on the way that said so.
func isTooBig(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// neverFragment is for sockets whose datagrams leave whole or not at all, whatever the kernel has learned of the path:
// a smaller one that it remembers would hide what the path does now.
func neverFragment(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
	)
}

// control runs f on a socket.
func control(c syscall.RawConn, f func(fd int) error) error {
	var inner error
	err := c.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

// share lets the sockets of several clients have one port: each is connected to its client, which the kernel tells
// apart.
func share(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
	)
}

// connect connects a socket that was bound before, so that the kernel hands it what is said about its datagrams.
func connect(conn *net.UDPConn, to netip.AddrPort) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		if to.Addr().Is4() {
			return unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		}
		sa := &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
		if zone := to.Addr().Zone(); zone != "" {
			itf, err := net.InterfaceByName(zone)
			if err != nil {
				return err
			}
			sa.ZoneId = uint32(itf.Index)
		}
		return unix.Connect(fd, sa)
	})
}

// sentOver is what the kernel says of a connection. After its end it still does.
func sentOver(conn net.Conn) (s Sent) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return s
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return s
	}
	_ = control(raw, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		s = Sent{
			Segments: uint64(info.Data_segs_out), Retransmitted: uint64(info.Total_retrans), MSS: int(info.Snd_mss),
			RTT: time.Duration(info.Rtt) * time.Microsecond,
		}
		return nil
	})
	return s
}

// speedOf returns the speed of an interface in Mb/s, 0 where it has none or does not tell.
func speedOf(name string) int {
	text, err := os.ReadFile("/sys/class/net/" + name + "/speed")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return max(0, n) // -1 is unknown
}

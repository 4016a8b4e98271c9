package sockowner

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/hostaddr"
	"muster/internal/testutil"
)

// TestOwner asks for the other ends of connections over loopback: our own, a stranger's, and one that is closed.
func TestOwner(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skip(err)
			}
			defer l.Close()
			var a Asker
			defer a.Close()
			accept := func() (*net.TCPConn, netip.AddrPort, netip.AddrPort) {
				t.Helper()
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				tcp := c.(*net.TCPConn)
				raw, err := tcp.SyscallConn()
				if err != nil {
					t.Fatal(err)
				}
				var remote, local netip.AddrPort
				if err := errors.Join(raw.Control(func(fd uintptr) { remote, local, err = Ends(int(fd)) }), err); err != nil {
					t.Fatal(err)
				}
				if remote.String() != c.RemoteAddr().String() || local.String() != c.LocalAddr().String() {
					t.Fatalf("ends %s and %s of %s and %s", remote, local, c.RemoteAddr(), c.LocalAddr())
				}
				return tcp, remote, local
			}
			mine, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c, remote, local := accept()
			defer c.Close()
			if ours, uid, err := a.Ours(remote, local); !ours || err != nil || int(uid) != os.Geteuid() {
				t.Errorf("our own: %v, user %d, %v", ours, uid, err)
			}
			_ = mine.Close()
			_, _ = io.Copy(io.Discard, c)
			if ours, _, err := a.Ours(remote, local); ours || !errors.Is(err, errGone) {
				t.Errorf("closed: %v, %v", ours, err)
			}
			_, port, _ := net.SplitHostPort(l.Addr().String())
			cmd := testutil.OtherUser(t, "bash", "-c", "exec 3<>/dev/tcp/"+host+"/"+port+" && cat")
			stdin, _ := testutil.StartPiped(t, cmd)
			defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
			c, remote, local = accept()
			defer c.Close()
			if ours, uid, err := a.Ours(remote, local); ours || err != nil || uid != testutil.OtherUserID {
				t.Errorf("a stranger's: %v, user %d, %v", ours, uid, err)
			}
		})
	}
}

// TestOwnAddress: every address of this machine leads to loopback, and who comes by one of those is asked for, too.
func TestOwnAddress(t *testing.T) {
	own := slices.DeleteFunc(hostaddr.All(), netip.Addr.IsLoopback)
	if len(own) == 0 {
		t.Skip("this machine has loopback alone")
	}
	ifaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifaces {
		addrs, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs { // the sockets of such belong to an interface
			if a, is := netip.AddrFromSlice(a.(*net.IPNet).IP); is && a.Is6() && a.IsLinkLocalUnicast() {
				own = append(own, a.WithZone(i.Name))
			}
		}
	}
	for _, from := range own {
		tos := []netip.Addr{from}
		switch {
		case from.Is4():
			tos = append(tos, netip.MustParseAddr("127.0.0.1"))
		case from.Zone() == "":
			tos = append(tos, netip.IPv6Loopback())
		}
		for _, to := range tos {
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to, 0)))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				mine, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
					net.TCPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(l.Addr().(*net.TCPAddr).Port))))
				if err != nil {
					t.Fatal(err)
				}
				defer mine.Close()
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				var a Asker
				defer a.Close()
				remote, local := c.RemoteAddr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort()
				if ours, uid, err := a.Ours(remote, local); !ours || err != nil || int(uid) != os.Geteuid() || !a.opened {
					t.Errorf("%v, user %d, %v; the kernel was asked: %v", ours, uid, err, a.opened)
				}
				_ = mine.Close()
				_, _ = io.Copy(io.Discard, c)
				if ours, _, err := a.Ours(remote, local); ours || !errors.Is(err, errGone) {
					t.Errorf("closed: %v, %v", ours, err)
				}
			})
		}
	}
}

// TestOtherEndHasAnotherAddress: a process may reach 127.0.0.1 from any address of its machine, and is asked for all
// the same.
func TestOtherEndHasAnotherAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var own net.IP
	for _, at := range all {
		if n, ok := at.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			own = n.IP
		}
	}
	if own == nil {
		t.Skip("this machine has loopback alone")
	}
	fd, err := dialAs(t, own.To4(), l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var a Asker
	defer a.Close()
	remote, local := c.RemoteAddr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort()
	if remote.Addr().Unmap().String() != own.String() {
		t.Fatalf("it came from %s", remote)
	}
	if ours, uid, err := a.Ours(remote, local); ours || err != nil || uid != testutil.OtherUserID {
		t.Errorf("a stranger at %s: %v, user %d, %v", remote, ours, uid, err)
	}
}

// dialAs connects a stranger's socket to a port of 127.0.0.1, from another address.
func dialAs(t *testing.T, from net.IP, port int) (fd int, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the function, as its user is another one
		if err = unix.Setfsuid(testutil.OtherUserID); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte(from)}); err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		}
	}()
	<-done
	return fd, err
}

// TestOtherMachines: who comes from elsewhere is not asked for.
func TestOtherMachines(t *testing.T) {
	var a Asker
	if ours, _, err := a.Ours(netip.MustParseAddrPort("192.0.2.1:5"), netip.MustParseAddrPort("192.0.2.2:6")); !ours ||
		err != nil || a.opened {
		t.Errorf("%v, %v", ours, err)
	}
}

// TestParse: what a kernel answers that has no such connection, that has no sock_diag, and that has one which nobody
// holds any more.
func TestParse(t *testing.T) {
	failure := func(errno int32) []byte {
		b := make([]byte, 36)
		order.PutUint16(b[4:], 2)
		order.PutUint32(b[16:], uint32(-errno))
		return b
	}
	found := func(uid, inode uint32) []byte {
		b := make([]byte, headerBytes+answerBytes)
		order.PutUint16(b[4:], sockDiagByFamily)
		order.PutUint32(b[headerBytes+atUID:], uid)
		order.PutUint32(b[headerBytes+atInode:], inode)
		return b
	}
	for name, c := range map[string]struct {
		answer []byte
		uid    uint32
		err    error
	}{
		"found": {found(7, 9), 7, nil}, "orphan": {found(0, 0), 0, errGone}, "none": {failure(2), 0, errGone},
		"denied": {failure(13), 0, errUnknown}, "empty": {make([]byte, headerBytes), 0, errUnknown},
		"short": {found(7, 9)[:40], 0, errUnknown},
	} {
		if uid, err := parse(c.answer); uid != c.uid || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", name, uid, err)
		}
	}
}

// TestFirstIsGone: the first connection that is asked for is gone, and the kernel is known to tell of others.
func TestFirstIsGone(t *testing.T) {
	var a Asker
	defer a.Close()
	nowhere := netip.MustParseAddrPort("127.0.0.1:1")
	if ours, _, err := a.Ours(nowhere, nowhere); ours || !errors.Is(err, errGone) || !a.proven {
		t.Errorf("%v, %v", ours, err)
	}
}

// BenchmarkOwner is what a store of one node asks for each client.
func BenchmarkOwner(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var a Asker
	defer a.Close()
	from, to := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	for b.Loop() {
		if _, err := a.Owner(from, to); err != nil {
			b.Fatal(err)
		}
	}
}

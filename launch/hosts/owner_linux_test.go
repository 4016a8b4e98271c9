package hosts

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// TestOurs: an agent tells whose process a connection of its machine is, and who asks it hears when it is gone.
func TestOurs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ours := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	ends := make(chan struct{})
	agent := func(link *Link) int {
		_ = link.Hello(Hello{})
		<-ends
		return 0
	}
	f, _ := newFleet(t, machine("node", agent))
	if err := f.Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, c := range map[string]struct {
		from, to netip.AddrPort
		want     bool
	}{
		"ours": {ours, to, true}, "another user's": {otherUsersConn(t, to), to, false},
		"nobody's":                      {netip.AddrPortFrom(to.Addr(), 1), to, false},
		"of no address of that machine": {netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("192.0.2.2:7"), true},
	} {
		if got, err := f.Ours(t.Context(), 0, c.from, c.to); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	close(ends)
	testutil.Eventually(t, 30*time.Second, "the agent is gone", func() bool {
		_, err := f.Ours(t.Context(), 0, ours, to)
		return err != nil
	})
}

// An agent that does not answer is not waited for longer than who asks it has time.
func TestOursWithoutAnswer(t *testing.T) {
	s := &session{ended: make(chan struct{}), wire: frames{w: discard{}, takes: maxFrame}}
	f := &Fleet{nodes: []*fleetNode{{session: s}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Ours(ctx, 0, netip.AddrPort{}, netip.AddrPort{}); err == nil {
		t.Error("there is an answer")
	}
	s.questions.answer(1, true)   // too late, and
	s.questions.answer(77, false) // never asked for
	close(s.ended)
	if _, err := f.Ours(t.Context(), 0, netip.AddrPort{}, netip.AddrPort{}); err == nil {
		t.Error("an agent that is gone has answered")
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// otherUsersConn is another user's end of a connection.
func otherUsersConn(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	if unix.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	made := make(chan int)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its user
		fd := -1
		if _, err := unix.SetfsuidRetUid(testutil.OtherUserID); err == nil {
			fd, _ = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		}
		made <- fd
	}()
	fd := <-made
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := name.(*unix.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
}

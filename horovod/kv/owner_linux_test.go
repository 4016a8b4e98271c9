package kv_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/horovod/kv"
	"muster/internal/testutil"
)

// TestOtherUsers: every user of a machine reaches loopback. Where a job has workers on this one, processes of others
// are not answered, unless somebody has named loopback.
func TestOtherUsers(t *testing.T) {
	for name, networks := range map[string][]netip.Prefix{"refused": nil, "let in": {netip.MustParsePrefix("127.0.0.0/8")}} {
		t.Run(name, func(t *testing.T) {
			s := kv.New(nil)
			var log buffer
			clients := kv.NewClients(networks, zerolog.New(&log))
			clients.Set("here", addrs("127.0.0.1"), nil)
			s.Only(clients)
			addr := serve(t, s)
			if got, err := from(t, "127.0.0.1", addr, ask("PUT", "/global/0", "ours")); err != nil || got != "HTTP/1.1 200" {
				t.Fatalf("our own process: %q, %v", got, err)
			}
			_, port, _ := net.SplitHostPort(addr)
			const put = `exec 3<>/dev/tcp/127.0.0.1/$0 && ` +
				`printf 'PUT /global/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx' >&3 && head -c 12 <&3 | grep 200`
			err := testutil.OtherUser(t, "bash", "-c", put, port).Run()
			if served := err == nil; served != (name == "let in") {
				t.Errorf("another user was answered: %v (%v)", served, err)
			}
			if told := strings.Contains(log.String(), "another user's"); told != (name == "refused") {
				t.Errorf("the log has %q", log.String())
			}
		})
	}
}

// TestDoorsAreHeld: who listens on the port of a job's rendezvous, at an address where it is not served yet, is taken
// for it by the workers that are told of that address later. Another user cannot, whichever way he shares ports.
func TestDoorsAreHeld(t *testing.T) {
	d, err := kv.NewDoors()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ways := map[string][]int{
		"alone": nil, "SO_REUSEADDR": {unix.SO_REUSEADDR}, "SO_REUSEPORT": {unix.SO_REUSEPORT},
		"both": {unix.SO_REUSEADDR, unix.SO_REUSEPORT},
	}
	for name, options := range ways {
		for _, addr := range []unix.Sockaddr{
			&unix.SockaddrInet4{Port: d.Port(), Addr: [4]byte{127, 0, 0, 1}}, &unix.SockaddrInet4{Port: d.Port()},
			&unix.SockaddrInet6{Port: d.Port()},
		} {
			if err := otherUserListens(t, addr, options); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("another user who shares ports by %s listens at %+v: %v", name, addr, err)
			}
		}
	}
	if err := d.Open(t.Context(), netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Error(err)
	}
}

// otherUserListens tries to listen as another user.
func otherUserListens(t *testing.T, addr unix.Sockaddr, options []int) error {
	t.Helper()
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to be another user")
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its user
		if _, err := unix.SetfsuidRetUid(testutil.OtherUserID); err != nil {
			result <- err
			return
		}
		family := unix.AF_INET
		if _, is := addr.(*unix.SockaddrInet6); is {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			result <- err
			return
		}
		defer unix.Close(fd)
		for _, option := range options {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1))
		}
		if err == nil {
			err = unix.Bind(fd, addr)
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		result <- err
	}()
	return <-result
}

package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/horovod/kv"
	"muster/internal/testutil"
)

// from connects from an address of this machine's loopback, and asks.
func from(t *testing.T, source, addr, request string) (string, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 20 * time.Second}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, request)
	answer := make([]byte, 12)
	_, err = io.ReadFull(conn, answer)
	return string(answer), err
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range list {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// A worker's words count from its own host, a value from any host of the job, and nobody else is answered.
func TestClients(t *testing.T) {
	d := &driver{place: make(chan string, 1), gone: make(chan string, 1), seen: make(chan int, 9)}
	s := kv.New(d)
	var log buffer
	clients := kv.NewClients([]netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}, zerolog.New(&log))
	s.Only(clients)
	addr := serve(t, s)
	put := ask("PUT", "/global/0", "x")
	if _, err := from(t, "127.0.0.1", addr, put); err == nil {
		t.Error("a client was answered before there was a host")
	}
	if got, err := from(t, "127.0.0.9", addr, put); err != nil || got != "HTTP/1.1 200" {
		t.Errorf("a client from an allowed network: %q, %v", got, err)
	}
	clients.Set("n1", addrs("10.1.2.3", "127.0.0.1"), nil)
	if got, err := from(t, "127.0.0.1", addr, put); err != nil || got != "HTTP/1.1 200" {
		t.Errorf("a client on a host: %q, %v", got, err)
	}
	for slot, want := range map[string]string{
		"n1:0": "HTTP/1.1 200", "n1:4095": "HTTP/1.1 200", "n1:4096": "HTTP/1.1 403", "n1:-1": "HTTP/1.1 403", "n1:x": "HTTP/1.1 403",
		"n1":   "HTTP/1.1 403",
		"n2:0": "HTTP/1.1 403", ":0": "HTTP/1.1 403", "10.1.2.3:0": "HTTP/1.1 403",
	} {
		if got, err := from(t, "127.0.0.1", addr, ask("PUT", "/worker_addresses/"+slot, "text")); err != nil || got != want {
			t.Errorf("a registration of %s: %q, %v", slot, got, err)
		}
		d.place <- "place"
		if got, err := from(t, "127.0.0.1", addr, ask("GET", "/rank_and_size/"+slot, "")); err != nil || got != want {
			t.Errorf("a question of %s: %q, %v", slot, got, err)
		}
		select { // nobody took it
		case <-d.place:
		default:
		}
	}
	clients.Drop("n1")
	if _, err := from(t, "127.0.0.1", addr, put); err == nil {
		t.Error("a client of a host that is gone was answered")
	}
	if n := strings.Count(log.String(), "none of the job's hosts"); n != 1 {
		t.Errorf("an address was named %d times in the log:\n%s", n, log.String())
	}
}

// On another machine, whose kernel is asked by its agent, other users read what is stored, and change nothing. Where
// the machine says nothing nobody does.
func TestOtherUsersOfAHost(t *testing.T) {
	for name, c := range map[string]struct {
		ours     bool
		err      error
		networks []netip.Prefix
		asked    bool
		status   string
	}{
		"of the job":     {true, nil, nil, true, "200"},
		"of another":     {false, nil, nil, true, "403"},
		"not known":      {true, errors.New("its agent is gone"), nil, true, "403"},
		"by the network": {false, nil, []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, false, "200"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &driver{place: make(chan string, 9), gone: make(chan string, 1), seen: make(chan int, 9)}
			s := kv.New(d)
			clients := kv.NewClients(c.networks, zerolog.Nop())
			var asked atomic.Int32
			addr := ""
			clients.Set("n1", addrs("127.0.0.1"), func(_ context.Context, from, to netip.AddrPort) (bool, error) {
				if asked.Add(1); from.Addr() != netip.MustParseAddr("127.0.0.1") || from.Port() == 0 || to.String() != addr {
					t.Errorf("asked for a connection from %v to %v", from, to)
				}
				return c.ours, c.err
			})
			s.Only(clients)
			addr = serve(t, s)
			d.place <- "place"
			changes := []string{
				ask("PUT", "/global/0", "x"), ask("DELETE", "/global/1", ""), ask("PUT", "/worker_addresses/n1:0", "text"),
				ask("GET", "/rank_and_size/n1:0", ""),
			}
			for _, request := range changes {
				if got, err := from(t, "127.0.0.1", addr, request); err != nil || got != "HTTP/1.1 "+c.status {
					t.Errorf("%.40q: %q, %v", request, got, err)
				}
			}
			if n := int(asked.Load()); c.asked != (n == len(changes)) || !c.asked && n > 0 {
				t.Errorf("asked %d times", n)
			}
			if got, err := from(t, "127.0.0.1", addr, ask("GET", "/global/2", "")); err != nil || got != "HTTP/1.1 404" {
				t.Errorf("a question: %q, %v", got, err)
			}
		})
	}
}

// Whatever a client sends that is refused, the log says it once, and shortly.
func TestRefusalsAreFewLines(t *testing.T) {
	d := &driver{place: make(chan string, 1), gone: make(chan string, 1), seen: make(chan int, 9)}
	s := kv.New(d)
	var log buffer
	clients := kv.NewClients(nil, zerolog.New(&log))
	clients.Set("n1", addrs("127.0.0.1"), nil)
	s.Only(clients)
	addr := serve(t, s)
	long := strings.Repeat("x", 4000)
	for i := range 100 {
		for request, want := range map[string]string{
			ask("PUT", fmt.Sprintf("/worker_addresses/%s%d:0", long, i), "text"): "HTTP/1.1 403",
			ask("GET", fmt.Sprintf("/rank_and_size/%s%d:0", long, i), ""):        "HTTP/1.1 403",
			ask("PUT", fmt.Sprintf("/worker_addresses/n1:%d", i), ""):            "HTTP/1.1 400",
			"NONSENSE\r\n\r\n": "HTTP/1.1 400",
		} {
			if got, err := from(t, "127.0.0.1", addr, request); err != nil || got != want {
				t.Fatalf("%.40q: %q, %v", request, got, err)
			}
		}
	}
	text := log.String()
	if strings.Count(text, "\n") != 1 || len(text) > 1000 || !strings.Contains(text, "refused what a client says for a worker") {
		t.Errorf("%d lines of the log, %d bytes: %.2000s", strings.Count(text, "\n"), len(text), text)
	}
}

// An address has few connections, also of those on which it asks one thing after the other. Others keep theirs.
func TestConnectionsOfOneAddress(t *testing.T) {
	s := kv.New(nil)
	s.Most(8)
	addr := serve(t, s)
	asking := func(source string) (net.Conn, bool) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		conn, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, ask("GET", "/global/0", ""))
		answer := make([]byte, 12)
		_, err = io.ReadFull(conn, answer)
		return conn, err == nil && string(answer) == "HTTP/1.1 404"
	}
	var last net.Conn
	for i := range 20 {
		conn, ok := asking("127.0.0.2")
		if ok != (i < 8) {
			t.Errorf("connection %d was answered: %v", i, ok)
		}
		if ok {
			last = conn
		}
	}
	if _, ok := asking("127.0.0.3"); !ok {
		t.Error("another address was not answered")
	}
	last.Close()
	testutil.Eventually(t, 20*time.Second, "there is room again", func() bool {
		_, ok := asking("127.0.0.2")
		return ok
	})
}

// Whoever connects and asks nothing has few connections, and not for long; a whole request ends that.
func TestSilentClients(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	addr := serve(t, kv.New(nil))
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			c.Close()
		}
	}()
	closed := 0
	for range 1100 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	deadline := time.Now().Add(5 * time.Second)
	for _, c := range silent[1024:] {
		_ = c.SetReadDeadline(deadline)
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != 76 {
		t.Errorf("%d of 76 connections beyond the limit were closed", closed)
	}
	_ = silent[0].SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that says nothing is kept: %d, %v", n, err)
	}
	want(t, addr, ask("PUT", "/global/0", "x"), fmt.Sprintf(found, 0))
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// One port on the addresses that were opened, and on no other.
func TestDoors(t *testing.T) {
	d, err := kv.NewDoors()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- kv.New(nil).Serve(ctx, d) }()
	reached := func(host string) bool {
		c, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(d.Port())))
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
	if reached("127.0.0.1") {
		t.Error("it listens before a door was opened")
	}
	for range 2 {
		if err := d.Open(ctx, netip.MustParseAddr("127.0.0.2")); err != nil {
			t.Fatal(err)
		}
	}
	if reached("127.0.0.1") {
		t.Error("it listens on an address that was not opened")
	}
	if err := d.Open(ctx, netip.MustParseAddr("127.0.0.3")); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.2", "127.0.0.3"} {
		want(t, fmt.Sprintf("%s:%d", host, d.Port()), ask("PUT", "/global/0", "x"), fmt.Sprintf(found, 0))
	}
	if l, err := kv.Listen(ctx, "127.0.0.2", d.Port()); err == nil {
		l.Close()
		t.Error("somebody else got the port on an address that is open")
	}
	if err := d.Open(ctx, netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("it listens on an address of another machine")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if reached("127.0.0.2") || d.Close() != nil {
		t.Error("it listens when it is closed")
	}
	if err := d.Open(t.Context(), netip.MustParseAddr("127.0.0.4")); err != nil || reached("127.0.0.4") {
		t.Error("a closed one was opened")
	}
}

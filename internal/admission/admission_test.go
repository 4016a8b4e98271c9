package admission_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers every connection that sends "hello" with the same, once it is proven.
func server(t *testing.T, cfg admission.Config) *admission.Gate {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	g := admission.Listener(l, cfg)
	var conns sync.WaitGroup
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := g.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				var b [5]byte
				if _, err := io.ReadFull(conn, b[:]); err != nil || string(b[:]) != "hello" || !admission.Proven(conn) {
					return
				}
				_, _ = conn.Write(b[:])
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	}()
	t.Cleanup(func() {
		_ = g.Close()
		<-accepting
		conns.Wait()
	})
	return g
}

// from connects from one of this machine's addresses.
func from(t *testing.T, addr string, g *admission.Gate) (net.Conn, error) {
	t.Helper()
	_, port, err := net.SplitHostPort(g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}, Timeout: 10 * time.Second}
	return d.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
}

// greet says hello, and reports whether it was heard.
func greet(t *testing.T, addr string, g *admission.Gate) (net.Conn, bool) {
	t.Helper()
	conn, err := from(t, addr, g)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write([]byte("hello"))
	var b [5]byte
	_, err = io.ReadFull(conn, b[:])
	if err != nil {
		_ = conn.Close()
	}
	return conn, err == nil
}

// gone waits until the other end has closed a connection.
func gone(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a silent connection was not closed")
	}
}

func TestAFloodOfSilentConnections(t *testing.T) {
	const flood, peers = 2000, 50
	g := server(t, admission.Config{Total: 64, PerAddr: 16, Time: 2 * time.Second})
	silent := make([]net.Conn, 0, flood)
	for i := range flood {
		conn, err := from(t, "127.0.0.2", g)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
		if i%(flood/peers) == 0 { // meanwhile a peer gets in at once, at the first try
			peer, ok := greet(t, "127.0.0.3", g)
			if !ok {
				t.Fatalf("a peer was locked out after %d silent connections of another address", i)
			}
			defer peer.Close()
			if n := g.Unproven(); n > 16+1 {
				t.Fatalf("%d connections are unproven, the limit for one address is 16", n)
			}
		}
	}
	for _, conn := range silent {
		gone(t, conn)
	}
	if n := g.Unproven(); n != 0 {
		t.Errorf("%d connections are still counted", n)
	}
	if peer, ok := greet(t, "127.0.0.2", g); !ok {
		t.Error("the address of the flood is locked out for good")
	} else {
		peer.Close()
	}
}

// TestAddressesWithMoreGiveWay has the total reached by two addresses: others get in all the same.
func TestAddressesWithMoreGiveWay(t *testing.T) {
	g := server(t, admission.Config{Total: 8, PerAddr: 4, Time: time.Hour})
	for range 4 {
		for _, addr := range []string{"127.0.0.2", "127.0.0.4"} {
			conn, err := from(t, addr, g)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
	for range 6 {
		peer, ok := greet(t, "127.0.0.3", g)
		if !ok {
			t.Fatal("a peer was locked out by two addresses")
		}
		defer peer.Close()
	}
	if n := g.Unproven(); n > 8 {
		t.Errorf("%d connections are unproven, the limit is 8", n)
	}
}

// TestManyPeersAtOnceWaitInLine has as many addresses connect as in a large job: none is turned away.
func TestManyPeersAtOnceWaitInLine(t *testing.T) {
	g := server(t, admission.Config{Total: 4, PerAddr: 2, Time: 20 * time.Second})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			peer, ok := greet(t, net.IPv4(127, 0, 1, byte(i+1)).String(), g)
			if !ok {
				t.Errorf("peer %d was turned away", i)
				return
			}
			_ = peer.Close()
		})
	}
	wg.Wait()
}

// TestProvenOnesStay has a connection outlive the limit of time, and looks through what wraps it.
func TestProvenOnesStay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 1)
	g := admission.Listener(l, admission.Config{Total: 1, PerAddr: 1, Time: 500 * time.Millisecond, Refuse: func(c net.Conn) {
		_, _ = c.Write([]byte("busy"))
		refused <- struct{}{}
	}})
	defer g.Close()
	first, err := from(t, "127.0.0.1", g)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	served, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()

	second, err := from(t, "127.0.0.1", g)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		if c, err := g.Accept(); err == nil {
			t.Errorf("%v was let in", c.RemoteAddr())
		}
	}()
	<-refused
	_ = second.SetDeadline(time.Now().Add(20 * time.Second))
	if text, _ := io.ReadAll(second); string(text) != "busy" {
		t.Errorf("one that was refused was told %q", text)
	}

	if !admission.Proven(tls.Server(served, &tls.Config{MinVersion: tls.VersionTLS13})) {
		t.Error("a connection within a TLS connection was not found")
	}
	if admission.Proven(served) || g.Unproven() != 0 {
		t.Error("a connection is proven twice")
	}
	time.Sleep(time.Second) // the limit of time passes, twice
	go func() { _, _ = served.Write([]byte("x")) }()
	_ = first.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err != nil {
		t.Errorf("a proven connection was closed: %v", err)
	}
	_ = g.Close()
	<-accepting
}

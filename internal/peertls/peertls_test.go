package peertls_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/peertls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 20 * time.Second

var domain = peertls.Domain{Token: []byte("a token of this test"), Purpose: "tests", RunID: "run"}

// listener accepts connections and has each served, until the test ends.
func listener(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(soon))
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// echo starts a server that sends back what it is sent, and returns its identity. heard gets what came from proven
// clients.
func echo(t testing.TB, d peertls.Domain, heard func([]byte)) peertls.Identity {
	t.Helper()
	var a *peertls.Acceptor
	ready := make(chan struct{})
	addr := listener(t, func(conn net.Conn) {
		<-ready
		c, err := a.Server(t.Context(), conn)
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(soon))
		b := make([]byte, 1<<20)
		for {
			n, err := c.Read(b)
			if n > 0 && heard != nil {
				heard(b[:n])
			}
			if err != nil {
				return
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
	})
	id := peertls.NewIdentity(addr)
	if err := id.Check(); err != nil || id.Addr() != addr {
		t.Fatalf("%s: %v", id, err)
	}
	a = d.Acceptor(id)
	close(ready)
	return id
}

// connect dials an address, and proves that it is id.
func connect(t testing.TB, d peertls.Domain, addr string, id peertls.Identity, limit time.Duration) (*peertls.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(limit))
	return d.Client(t.Context(), conn, id)
}

func TestBothEndsAreProven(t *testing.T) {
	id := echo(t, domain, nil)
	c, err := connect(t, domain, id.Addr(), id, soon)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 100, 1 << 14, 1 << 20} {
		sent, got := bytes.Repeat([]byte{byte(n), 7}, n/2+1), make([]byte, 2*(n/2+1))
		wrote := make(chan error, 1)
		go func() { _, err := c.Write(sent); wrote <- err }()
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes did not come back: %v", n, err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	}
	if v := c.ConnectionState(); v.Version != tls.VersionTLS13 || v.DidResume {
		t.Errorf("%+v", v)
	}
}

func TestKeyOfAConnection(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	id := peertls.NewIdentity("127.0.0.1:1")
	a := domain.Acceptor(id)
	keys := make(chan []byte, 1)
	go func() {
		c, err := a.Server(t.Context(), there)
		if err != nil {
			t.Error(err)
			close(keys)
			return
		}
		key, err := c.Key("x")
		if err != nil {
			t.Error(err)
		}
		keys <- key
	}()
	c, err := domain.Client(t.Context(), here, id)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := c.Key("x")
	other, _ := c.Key("y")
	if theirs := <-keys; err != nil || len(ours) != 32 || !bytes.Equal(ours, theirs) || bytes.Equal(ours, other) {
		t.Errorf("%x %x %x %v", ours, theirs, other, err)
	}
}

// TestWhoIsNotLetIn has clients that differ in one thing from the one that is.
func TestWhoIsNotLetIn(t *testing.T) {
	id := echo(t, domain, func(b []byte) { t.Errorf("the server took %q", b) })
	change := func(f func(*peertls.Domain)) peertls.Domain { d := domain; f(&d); return d }
	for name, c := range map[string]struct {
		d    peertls.Domain
		id   peertls.Identity
		want error
	}{
		"another token":      {change(func(d *peertls.Domain) { d.Token = []byte("the token of others") }), id, peertls.ErrToken},
		"no token":           {change(func(d *peertls.Domain) { d.Token = nil }), id, peertls.ErrToken},
		"another purpose":    {change(func(d *peertls.Domain) { d.Purpose = "probes" }), id, peertls.ErrToken},
		"another run":        {change(func(d *peertls.Domain) { d.RunID = "run 2" }), id, peertls.ErrToken},
		"an earlier process": {domain, peertls.NewIdentity(id.Addr()), peertls.ErrOther},
		"another node":       {domain, peertls.Identity(strings.Replace(string(id), "127.0.0.1", "127.0.0.2", 1)), peertls.ErrOther},
	} {
		conn, err := connect(t, c.d, id.Addr(), c.id, soon)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if conn != nil {
			t.Errorf("%s was let in", name)
		}
	}
}

// TestOtherServers has clients meet what is no server of the job.
func TestOtherServers(t *testing.T) {
	ends := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, text)
		}
	}
	web := certificate(t)
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  error
	}{
		"silent": {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, peertls.ErrSilent},
		"HTTP":   {ends("HTTP/1.1 400 Bad Request\r\n\r\n"), peertls.ErrNotUs},
		"SSH":    {ends("SSH-2.0-OpenSSH_9.6\r\n"), peertls.ErrNotUs},
		"closes": {ends(""), peertls.ErrNotUs},
		"busy":   {func(c net.Conn) { peertls.Refuse(c); _, _ = io.Copy(io.Discard, c) }, peertls.ErrBusy},
		"TLS of another program": {func(c net.Conn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{web}, MinVersion: tls.VersionTLS13}).Handshake()
		}, peertls.ErrNotUs},
		"half a record": {ends("\x16\x03\x03\x10\x00abc"), peertls.ErrNotUs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := listener(t, c.serve)
			limit := soon
			if errors.Is(c.want, peertls.ErrSilent) {
				limit = time.Second
			}
			if _, err := connect(t, domain, addr, peertls.NewIdentity(addr), limit); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// relay passes bytes on to another address, and may change them on the way. It keeps what went in each direction.
type relay struct {
	to     func() string
	change func(toServer bool, b []byte) []byte
	ends   bool // after the first change

	mu   sync.Mutex
	sent []byte // to the server
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.to())
	if err != nil {
		return
	}
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(soon))
	pass := func(to, from net.Conn, toServer bool) {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if err != nil {
				_ = to.(*net.TCPConn).CloseWrite()
				return
			}
			out := bytes.Clone(b[:n])
			r.mu.Lock()
			if toServer {
				r.sent = append(r.sent, out...)
			}
			if r.change != nil {
				out = r.change(toServer, out)
			}
			end := r.ends && len(out) < n
			r.mu.Unlock()
			if _, err := to.Write(out); err != nil {
				return
			}
			if end {
				_, _ = to.(*net.TCPConn).CloseWrite(), from.(*net.TCPConn).CloseWrite()
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { pass(server, client, true); _ = client.SetDeadline(time.Now().Add(time.Second)) })
	pass(client, server, false)
	both.Wait()
}

// TestRelays sit between the two ends.
func TestRelays(t *testing.T) {
	secret := bytes.Repeat([]byte("what the two say "), 100)
	var mu sync.Mutex
	var took []byte
	heard := func(b []byte) { mu.Lock(); defer mu.Unlock(); took = append(took, b...) }
	id, elsewhere := echo(t, domain, heard), echo(t, domain, heard)
	say := func(r *relay) (string, error) {
		mu.Lock()
		took = nil
		mu.Unlock()
		c, err := connect(t, domain, listener(t, r.serve), id, soon)
		if err != nil {
			return "", err
		}
		if _, err := c.Write(secret); err != nil {
			return "", err
		}
		got := make([]byte, len(secret))
		_, err = io.ReadFull(c, got)
		return string(got), err
	}
	honest := &relay{to: id.Addr}
	if got, err := say(honest); err != nil || got != string(secret) {
		t.Fatalf("a relay that does nothing: %q %v", got, err)
	}
	if bytes.Contains(honest.sent, secret[:16]) {
		t.Error("what was said stands on the wire")
	}
	if _, err := say(&relay{to: elsewhere.Addr}); !errors.Is(err, peertls.ErrOther) {
		t.Errorf("a relay to another node: %v", err)
	}
	after := func(n int, f func([]byte) []byte) func(bool, []byte) []byte {
		total := 0 // of this relay: one of before may still pass bytes on
		return func(toServer bool, b []byte) []byte {
			if !toServer {
				return b
			}
			total += len(b)
			if total < n {
				return b
			}
			return f(b)
		}
	}
	handshake := len(honest.sent) - len(secret) - 100
	for name, f := range map[string]func([]byte) []byte{
		"flips a bit": func(b []byte) []byte { b[len(b)-3] ^= 4; return b },
		"injects":     func(b []byte) []byte { return append([]byte{23, 3, 3, 0, 30}, append(make([]byte, 30), b...)...) },
		"repeats":     func(b []byte) []byte { return append(b, b...) },
		"cuts":        func(b []byte) []byte { return b[:len(b)/2] },
	} {
		r := &relay{to: id.Addr, change: after(handshake, f), ends: name == "cuts"}
		got, err := say(r)
		mu.Lock()
		if !bytes.HasPrefix(secret, took) && !strings.HasPrefix(string(secret), string(took)) {
			t.Errorf("a relay that %s: the server took what was not said: %q", name, took)
		}
		mu.Unlock()
		if err == nil && name != "repeats" { // what comes twice is refused after it was taken once
			t.Errorf("a relay that %s: nobody noticed (%q)", name, got)
		}
	}
	// What was recorded of a connection opens no other one.
	mu.Lock()
	took = nil
	mu.Unlock()
	conn, err := net.Dial("tcp", id.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(soon))
	_, _ = conn.Write(honest.sent)
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a replay is not closed: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(took) > 0 {
		t.Errorf("a replay had the server take %q", took)
	}
}

// TestPeersWithoutTokenAreShownNothing: who has not the token gets an alert, and nothing that follows from the token.
func TestPeersWithoutTokenAreShownNothing(t *testing.T) {
	id := echo(t, domain, func(b []byte) { t.Errorf("the server took %q", b) })
	for name, c := range map[string]*tls.Config{
		"no name": {}, "another name": {NextProtos: []string{"h2"}},
	} {
		conn, err := net.Dial("tcp", id.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(soon))
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(tls.ConnectionState) error { t.Errorf("%s: it was shown a certificate", name); return nil }
		if err := tls.Client(conn, c).Handshake(); err == nil {
			t.Errorf("%s: a peer without the token was let in", name)
		}
	}
	for name, text := range map[string]string{
		"HTTP": "GET / HTTP/1.1\r\nHost: here\r\n\r\n", "zeros": strings.Repeat("\x00", 1000),
		"nothing": "",
	} {
		conn, err := net.Dial("tcp", id.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(soon))
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
		if got, _ := io.ReadAll(conn); len(got) > 7 {
			t.Errorf("%s: a peer without the token was told %q", name, got)
		}
	}
}

// TestAClientWithTheKnockAlone has heard what a client says first, and has no token.
func TestAClientWithTheKnockAlone(t *testing.T) {
	id := echo(t, domain, func(b []byte) { t.Errorf("the server took %q", b) })
	var protos []string
	addr := listener(t, func(conn net.Conn) {
		_ = tls.Server(conn,
			&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				protos = h.SupportedProtos
				return nil, errors.New("enough")
			}}).Handshake()
	})
	_, _ = connect(t, domain, addr, id, soon)
	if len(protos) != 2 {
		t.Fatal(protos)
	}
	conn, err := net.Dial("tcp", id.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(soon))
	c := tls.Client(conn, &tls.Config{NextProtos: protos, InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate(t)}})
	if err := c.Handshake(); err == nil {
		_, _ = c.Write([]byte("let me in"))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("it was let in")
		}
	}
}

func TestIdentities(t *testing.T) {
	for _, bad := range []string{
		"", "/", "host:1", "host:1/", "host/abcdefghijklmnop", "host:0/abcdefghijklmnop", "host:70000/abcdefghijklmnop",
		":1/abcdefghijklmnop",
		"host:1/abcdefghijklmno", "host:1/ABCDEFGHIJKLMNOP", "host:1/../../../../etc/passwd", "ho st:1/abcdefghijklmnop",
		"host:1/" + strings.Repeat("a", 65),
		strings.Repeat("h", 400) + ":1/abcdefghijklmnop", "h\x1b:1/abcdefghijklmnop",
	} {
		if peertls.Identity(bad).Check() == nil {
			t.Errorf("%q is taken for an identity", bad)
		}
	}
	for _, good := range []string{"host:1/abcdefghijklmnop", "[fe80::1%eth0]:65535/abcdefghijklmnop0123456789"} {
		if err := peertls.Identity(good).Check(); err != nil {
			t.Error(err)
		}
	}
	if a, b := peertls.NewIdentity("h:1"), peertls.NewIdentity("h:1"); a == b {
		t.Error("two processes have one identity")
	}
}

// BenchmarkConn sends 256 MiB over loopback: encrypted, and as plain bytes by the same socket.
func BenchmarkConn(b *testing.B) {
	const size = 256 << 20
	from, to := make([]byte, size), make([]byte, size)
	for i := range from {
		from[i], to[i] = byte(i*7), 1
	}
	id := peertls.NewIdentity("127.0.0.1:1")
	a := domain.Acceptor(id)
	for _, name := range []string{"plain", "encrypted"} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			there, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer there.Close()
			here, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			defer here.Close()
			if name == "encrypted" {
				served := make(chan error, 1)
				go func() {
					c, err := a.Server(b.Context(), here)
					here = c
					served <- err
				}()
				c, err := domain.Client(b.Context(), there, id)
				if err := errors.Join(err, <-served); err != nil {
					b.Fatal(err)
				}
				there = c
			}
			b.SetBytes(size)
			for b.Loop() {
				sent := make(chan error, 1)
				go func() {
					for data := from; len(data) > 0; data = data[1<<20:] {
						if _, err := there.Write(data[:1<<20]); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				_, err := io.ReadFull(here, to)
				if err := errors.Join(err, <-sent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSwappedConnections: a relay that, of two connections of the same two agents, exchanges what goes one way or both
// ways, from the first byte or after both have proven themselves: neither end takes what was said on the other
// connection.
func TestSwappedConnections(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprintf("late %v, both ways %v", late, back), func(t *testing.T) {
				crossed := !late &&
					back // each client speaks with one connection of the server, if not with the one that the relay made for it
				var mu sync.Mutex
				var took [][]byte
				id := echo(t, domain, func(b []byte) { mu.Lock(); defer mu.Unlock(); took = append(took, bytes.Clone(b)) })
				var swapped atomic.Bool
				swapped.Store(!late)
				var ends [2][2]net.Conn // by connection: the client's, the server's
				var both sync.WaitGroup
				both.Add(2)
				var count atomic.Int32
				addr := listener(t, func(client net.Conn) {
					i := count.Add(1) - 1
					server, err := net.Dial("tcp", id.Addr())
					if err != nil {
						t.Error(err)
						return
					}
					defer server.Close()
					_ = server.SetDeadline(time.Now().Add(soon))
					ends[i] = [2]net.Conn{client, server}
					both.Done()
					both.Wait()
					pass := func(from, side int, swaps bool) {
						b := make([]byte, 64<<10)
						for {
							n, err := ends[from][side].Read(b)
							if err != nil {
								return
							}
							to := from
							if swaps && swapped.Load() {
								to = 1 - from
							}
							if _, err := ends[to][1-side].Write(b[:n]); err != nil {
								return
							}
						}
					}
					var up sync.WaitGroup
					up.Go(func() { pass(int(i), 0, true); server.Close() })
					pass(int(i), 1, back)
					client.Close()
					server.Close()
					up.Wait()
				})
				var clients sync.WaitGroup
				ready := make(chan struct{})
				var proven sync.WaitGroup
				proven.Add(2)
				for _, word := range []string{"said on the first connection", "said on the other connection"} {
					clients.Go(func() {
						c, err := connect(t, domain, addr, id, soon)
						proven.Done()
						<-ready
						if err != nil {
							if late {
								t.Error(err)
							}
							return
						}
						_, _ = c.Write([]byte(word))
						got := make([]byte, len(word))
						if _, err := io.ReadFull(c, got); err == nil && (!crossed || string(got) != word) {
							t.Errorf("%q was answered with %q", word, got)
						}
					})
				}
				proven.Wait()
				swapped.Store(true)
				close(ready)
				clients.Wait()
				mu.Lock()
				defer mu.Unlock()
				if !crossed && len(took) > 0 {
					t.Errorf("the server took %q", took)
				}
			})
		}
	}
}

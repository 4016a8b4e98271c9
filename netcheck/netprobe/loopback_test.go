package netprobe_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/peertls"
	"muster/internal/testutil"
	"muster/netcheck/netprobe"
)

// TestPair probes this machine itself, over IPv4 and IPv6: everything is there.
func TestPair(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	for i, listen := range []string{":0", "127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			if i > 0 {
				testutil.Long(t)
			}
			there, here := config("there"), config("here")
			there.Listen, here.Listen = listen, listen
			here.Streams = []int{1, 2}
			if listen == ":0" {
				there.Host = "127.0.0.1"
			}
			here.Serve = serve(t, here)
			measured(t, func(r reporter) {
				f := pair(t, here, serve(t, there))
				if f.Error != "" || f.NoBulk != "" || f.MTU.Skip != "" || f.Clock.Skip != "" {
					r.Errorf("%s", pretty(f))
					return
				}
				if f.Name() != "here->there" || f.Local.Iface != "lo" || f.Remote.Iface != "lo" || f.Local.MTU != f.Remote.MTU {
					r.Errorf("ends: %s", pretty(f))
				}
				if want := (netprobe.Reach{Out: netprobe.Tries{Done: 10}, Back: netprobe.Tries{Done: 10}}); f.Reach != want {
					r.Errorf("reach: %+v", f.Reach)
				}
				if f.RTT.Count < 10 || f.RTT.Min <= 0 || f.RTT.Min > f.RTT.P50 || f.RTT.P50 > f.RTT.P99 || f.RTT.P99 > f.RTT.Max {
					r.Errorf("round trips: %+v", f.RTT)
				}
				// It is the same clock.
				if f.Clock.Offset.Abs() > f.Clock.Error+time.Microsecond {
					r.Errorf("clock: %+v", f.Clock)
				}
				if got := f.MTU.Passes(); got != min(f.Local.MTU, 65535) {
					r.Errorf("sizes: %+v", f.MTU)
				}
				if len(f.Bulk) != 4 {
					r.Errorf("runs: %+v", f.Bulk)
					return
				}
				for i, b := range f.Bulk {
					if b.Streams != 1+i/2 || b.Direction != []netprobe.Direction{netprobe.Out, netprobe.Back}[i%2] || b.Bytes < 1<<20 ||
						b.Window != here.Timed || b.Sent == nil || b.Sent.Segments == 0 || b.Sent.MSS < 1000 {
						r.Errorf("run %d: %+v %+v", i, b, b.Sent)
					}
				}
			})
		})
	}
}

// TestOtherToken: neither side believes the other, and the reason says what to do.
func TestOtherToken(t *testing.T) {
	t.Parallel()
	there, here := config("there"), config("here")
	there.Token = []byte("the token of another job")
	f := pair(t, here, serve(t, there))
	if f.Reach.Out.Done != 1 || f.Reach.Out.Failed != 1 || !strings.Contains(f.Error, "this job's token") ||
		!strings.Contains(f.Hint, "MUSTER_TOKEN_FILE") {
		t.Errorf("%s", pretty(f))
	}
}

// TestServerWithoutToken plays a server that lets everybody in, and that must not be believed.
func TestServerWithoutToken(t *testing.T) {
	addr := listener(t, func(c net.Conn) {
		tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{muster(t)}}).Handshake()
		io.Copy(io.Discard, c)
	})
	if f := pair(t, config("here"), addr); !strings.Contains(f.Error, "this job's token") {
		t.Errorf("%s", pretty(f))
	}
}

func TestConfigRefused(t *testing.T) {
	for words, change := range map[string]func(*netprobe.Config){
		"the token has 15 bytes":    func(c *netprobe.Config) { c.Token = c.Token[:15] },
		"the node has no name":      func(c *netprobe.Config) { c.Node.Name = "" },
		"a number of streams is 17": func(c *netprobe.Config) { c.Streams = []int{17} },
		"a size of datagrams is 1":  func(c *netprobe.Config) { c.Sizes = []int{1} },
		"the budget is -1s":         func(c *netprobe.Config) { c.Budget = -time.Second },
		"a run is 1m0s":             func(c *netprobe.Config) { c.Timed = time.Minute },
	} {
		cfg := config("here")
		change(&cfg)
		_, err := netprobe.Pair(t.Context(), cfg, "127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", words, err)
		}
		if _, err := netprobe.Listen(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", words, err)
		}
	}
	cfg := config("here")
	cfg.Token = nil
	if _, err := netprobe.Listen(t.Context(), cfg); !strings.Contains(errhint.Of(err), "MUSTER_TOKEN_FILE") {
		t.Errorf("%v, hint %q", err, errhint.Of(err))
	}
	cfg = config("here")
	cfg.Listen = "127.0.0.1:notaport"
	if _, err := netprobe.Listen(t.Context(), cfg); err == nil {
		t.Error("listens nowhere")
	}
}

// muster is a certificate like that of an agent, of a key that anybody could make.
func muster(t testing.TB) tls.Certificate {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "muster"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// listener accepts connections and does with them what serve does, until the test ends. It returns an identity that it
// cannot prove.
func listener(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return string(peertls.NewIdentity(ln.Addr().String()))
}

// TestNobody: each way in which a port does not answer is told apart, and takes no longer than it may.
func TestNobody(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, c := range map[string]struct {
		addr, words, hint string
		tries             int
	}{
		"closed":   {string(peertls.NewIdentity(closed.Addr().String())), "refused", "is the agent running", 4},
		"silent":   {listener(t, func(c net.Conn) { io.Copy(io.Discard, c) }), "says nothing", "stopped", 3},
		"hangs up": {listener(t, func(c net.Conn) { io.ReadFull(c, make([]byte, 100)) }), "is something else", "another program", 3},
		"a web server": {listener(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, 100))
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}), "is something else", "another program", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config("here")
			cfg.Tries, cfg.Patience = 4, 300*time.Millisecond
			f := pair(t, cfg, c.addr)
			if !strings.Contains(f.Error, c.words) || !strings.Contains(f.Error, peertls.Identity(c.addr).Addr()) ||
				!strings.Contains(f.Hint, c.hint) {
				t.Errorf("%q, hint %q", f.Error, f.Hint)
			}
			if f.Reach.Out.Done != c.tries || f.Reach.Out.Failed != c.tries || f.Reach.Out.Last == "" {
				t.Errorf("%+v", f.Reach.Out)
			}
		})
	}
}

// TestWayBackClosed: this node's own port does not answer, and all else does.
func TestWayBackClosed(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config("here")
	cfg.Serve = string(peertls.NewIdentity(closed.Addr().String()))
	closed.Close()
	f := pair(t, cfg, serve(t, config("there")))
	if b := f.Reach.Back; b.Done != 10 || b.Failed != 10 || !strings.Contains(b.Last, "refused") {
		t.Errorf("%+v", b)
	}
	if f.Error != "" || len(f.Bulk) != 2 {
		t.Errorf("%s", pretty(f))
	}
}

// TestCanceled: the caller's end ends the probe at once, whatever it does.
func TestCanceled(t *testing.T) {
	testutil.Long(t)
	addr := serve(t, config("there"))
	cfg := config("here")
	cfg.Timed = 20 * time.Second
	cfg.Budget = time.Minute
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	go func() {
		time.Sleep(500 * time.Millisecond) // somewhere in the middle, where does not matter
		cancel(stop)
	}()
	began := time.Now()
	if _, err := netprobe.Pair(ctx, cfg, addr); !errors.Is(err, stop) {
		t.Error(err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestBudget: what does not fit is left out, and said.
func TestBudget(t *testing.T) {
	t.Parallel()
	addr := serve(t, config("there"))
	cfg := config("here")
	cfg.Budget, cfg.Timed, cfg.Streams = time.Minute, 29*time.Second, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if f := pair(t, cfg, addr); !strings.Contains(f.NoBulk, "budget of 1m0s") || f.RTT.Count == 0 {
		t.Errorf("%s", pretty(f))
	}
}

// TestTwoPairsAtOnce: two nodes want to stream with a third one, which does it one after the other.
func TestTwoPairsAtOnce(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	addr := serve(t, config("there"))
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		wg.Go(func() {
			f, err := netprobe.Pair(t.Context(), config(name), addr)
			if err != nil || f.Error != "" || f.NoBulk != "" || len(f.Bulk) != 2 {
				t.Errorf("%v %s", err, pretty(f))
			}
		})
	}
	wg.Wait()
}

// TestByteLimit: a run that has carried what it may ends early, and counts for its time.
func TestByteLimit(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			here, there := config("here"), config("there")
			here.Timed = 20 * time.Second
			if side == "client" {
				here.MaxBytes = 64 << 20
			} else {
				there.MaxBytes = 64 << 20
			}
			here.WarmUp = time.Millisecond
			f := pair(t, here, serve(t, there))
			if len(f.Bulk) != 2 || f.Took > soon {
				t.Fatalf("%s", pretty(f))
			}
			for _, b := range f.Bulk {
				if b.Bytes > 70<<20 || b.Window > 10*time.Second {
					t.Errorf("%+v", b)
				}
			}
		})
	}
}

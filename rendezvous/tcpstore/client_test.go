package tcpstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/storetest"
	"muster/rendezvous/tcpstore"
)

func dial(t testing.TB, addr string) *tcpstore.Client {
	t.Helper()
	return dialAs(t, addr, tcpstore.ClientConfig{})
}

func dialAs(t testing.TB, addr string, cfg tcpstore.ClientConfig) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := tcpstore.Dial(ctx, addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// timed is a context that bounds a hang.
func timed(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestStoreContract(t *testing.T) {
	for _, cfg := range []tcpstore.ServerConfig{
		{Loops: 1},
		{Loops: 4},
		{Private: "t"},
		{Private: "k"},
	} { // which some of the keys in use begin with
		servers := make(map[*testing.T]*tcpstore.Server)
		storetest.Run(t, func(t *testing.T) rendezvous.Store {
			if servers[t] == nil {
				servers[t] = listen(t, cfg)
			}
			return dialAs(t, servers[t].Addrs()[0].String(), tcpstore.ClientConfig{Private: cfg.Private})
		})
	}
}

func TestClientBeyondTheContract(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	for _, addr := range s.Addrs() {
		s.Reset()
		t.Run(addr.Addr().String(), func(t *testing.T) { exerciseClient(t, addr.String(), true) })
	}
}

// exerciseClient runs the calls that rendezvous.Store does not have against an empty store.
func exerciseClient(t *testing.T, addr string, queues bool) {
	a, b := dial(t, addr), dial(t, addr)
	ctx := timed(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	equal := func(got, want any) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	}
	check(a.Append(ctx, "ap", []byte("aa")))
	check(b.Append(ctx, "ap", []byte("bb")))
	check(a.MultiSet(ctx, tcpstore.Pair{Key: "m1", Value: []byte("1")}, tcpstore.Pair{Key: "m2", Value: nil}))
	values, err := b.MultiGet(ctx, "m2", "ap", "m1")
	check(err)
	equal(values, [][]byte{{}, []byte("aabb"), []byte("1")})
	there, err := b.Check(ctx, "m1", "ap")
	check(err)
	equal(there, true)
	there, err = b.Check(ctx, "m1", "missing")
	check(err)
	equal(there, false)
	n, err := b.NumKeys(ctx)
	check(err)
	equal(n, int64(3))
	list, err := a.ListKeys(ctx)
	check(err)
	equal(len(list), 3)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := a.Barrier(ctx, "barrier", 3); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !queues {
		return
	}
	check(a.QueuePush(ctx, "q", []byte("e1")))
	check(a.QueuePush(ctx, "q", []byte("e2")))
	n, err = b.QueueLen(ctx, "q")
	check(err)
	equal(n, int64(2))
	got, err := b.QueuePop(ctx, "q")
	check(err)
	equal(got, []byte("e1"))
	got, err = a.QueuePop(ctx, "q")
	check(err)
	equal(got, []byte("e2"))
	popped := make(chan []byte, 1)
	wg.Go(func() {
		v, err := b.QueuePop(ctx, "q")
		if err != nil {
			t.Error(err)
		}
		popped <- v
	})
	check(a.QueuePush(ctx, "q", bytes.Repeat([]byte("x"), 100_000)))
	equal(len(<-popped), 100_000)
	wg.Wait()
}

func TestClientSpeaksOlderGenerations(t *testing.T) {
	for _, tc := range []struct {
		gen    tcpstore.Generation
		append bool
	}{{tcpstore.G0, false}, {tcpstore.G1, true}} {
		t.Run(tc.gen.String(), func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{OldClients: tc.gen})
			c := dial(t, refuseHandshake(t, s.Addrs()[0].String()))
			ctx := timed(t)
			if err := c.Set(ctx, "k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			if there, err := c.Delete(ctx, "k"); err != nil || !there {
				t.Fatal(there, err)
			}
			err := c.Append(ctx, "k", []byte("v"))
			if tc.append && err != nil || !tc.append && !errors.Is(err, errors.ErrUnsupported) {
				t.Fatalf("append: %v", err)
			}
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if err := c.Wait(short, "never"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("wait: %v", err)
			}
			if n, err := c.Add(ctx, "n", 3); err != nil || n != 3 {
				t.Fatal(n, err)
			}
		})
	}
}

// refuseHandshake relays to addr, but closes a connection that begins with the handshake, as servers before PyTorch 2.2
// do: our server knows both kinds of clients.
func refuseHandshake(t *testing.T, addr string) string {
	t.Helper()
	return serve(t, func(in net.Conn) {
		var first [1]byte
		// The client under test never begins a connection with SET, which was number 0 then.
		if _, err := io.ReadFull(in, first[:]); err != nil || first[0] == 0 {
			return
		}
		out, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		out.Write(first[:])
		var back sync.WaitGroup
		back.Go(func() {
			io.Copy(in, out)
			in.Close()
		})
		io.Copy(out, in)
		out.Close()
		back.Wait()
	})
}

// serve has handle talk to everybody who connects to the address that it returns. It closes the connection afterwards.
func serve(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	return ln.Addr().String()
}

func TestDialTriesUntilTheContextEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = tcpstore.Dial(ctx, addr, tcpstore.ClientConfig{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), addr) || errhint.Of(err) == "" {
		t.Fatalf("error %v (hint %q)", err, errhint.Of(err))
	}
	if _, err := tcpstore.Dial(ctx, "no port", tcpstore.ClientConfig{}); errhint.CodeOf(err) != errhint.Usage {
		t.Errorf("error %v for an address without port", err)
	}
}

func TestDialWaitsForTheServer(t *testing.T) {
	first := listen(t, tcpstore.ServerConfig{})
	port := first.Port()
	first.Close()
	dialled := make(chan error, 1)
	go func() {
		c, err := tcpstore.Dial(timed(t), first.Addrs()[0].String(), tcpstore.ClientConfig{})
		if err == nil {
			defer c.Close()
			err = c.Set(timed(t), "k", nil)
		}
		dialled <- err
	}()
	listen(t, tcpstore.ServerConfig{Port: port})
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
}

func TestClientIsClosedWithItsServer(t *testing.T) {
	for name, end := range map[string]func(*tcpstore.Server){
		"close": func(s *tcpstore.Server) { s.Close() },
		"reset": func(s *tcpstore.Server) { s.Reset() },
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{})
			c, idle := dial(t, s.Addrs()[0].String()), dial(t, s.Addrs()[0].String())
			waits := make(chan error, 1)
			go func() { waits <- c.Wait(timed(t), "never") }()
			testutil.Eventually(t, patience, "the wait reaches the server", func() bool { return tcpstore.Waiting(s) == 1 })
			end(s)
			if err := <-waits; !errors.Is(err, rendezvous.ErrStoreClosed) {
				t.Errorf("wait: %v", err)
			}
			for range 2 {
				if err := idle.Set(timed(t), "k", nil); !errors.Is(err, rendezvous.ErrStoreClosed) {
					t.Errorf("set: %v", err)
				}
			}
		})
	}
}

func TestClosedClient(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	c := dial(t, s.Addrs()[0].String())
	waits := make(chan error, 1)
	go func() { waits <- c.Wait(timed(t), "never") }()
	testutil.Eventually(t, patience, "the wait reaches the server", func() bool { return tcpstore.Waiting(s) == 1 })
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-waits; !errors.Is(err, rendezvous.ErrStoreClosed) {
		t.Errorf("wait: %v", err)
	}
	testutil.Eventually(t, patience, "the server forgets the wait", func() bool { return tcpstore.Waiting(s) == 0 })
}

func TestClientRefusesWhatTheServerWouldCloseFor(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	c := dial(t, s.Addrs()[0].String())
	ctx := timed(t)
	long := strings.Repeat("k", 8<<10)
	if err := c.Set(ctx, long, make([]byte, 8<<20)); err != nil {
		t.Error("at the limits:", err)
	}
	if err := c.Set(ctx, long+"k", nil); err == nil {
		t.Error("a key beyond the limit passes")
	}
	if err := c.Set(ctx, "k", make([]byte, 8<<20+1)); err == nil {
		t.Error("a value beyond the limit passes")
	}
	if _, err := c.Check(ctx, make([]string, 128<<10)...); err != nil {
		t.Error("at the limit of keys:", err)
	}
	if _, err := c.Check(ctx, make([]string, 128<<10+1)...); err == nil {
		t.Error("too many keys pass")
	}
}

// TestTelling: an attempt to connect that began as the time ran out says nothing, and the one before it does.
func TestTelling(t *testing.T) {
	t.Parallel()
	refused, cut := errors.New("refused"), errors.New("timeout")
	for _, c := range []struct {
		last  error
		after time.Duration
		want  error
	}{
		{refused, time.Millisecond, refused}, {nil, time.Millisecond, cut}, {refused, 3 * time.Second, cut},
	} {
		if err := tcpstore.Telling(c.last, cut, c.after); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/tcpstore"
)

// relay is a network between a client and a server that does what networks and restarting servers do.
type relay struct {
	t    testing.TB
	to   string
	ln   net.Listener
	sent atomic.Int64 // bytes from the client
	// spoiled has the first byte of what the server sends changed.
	spoiled atomic.Bool
	wg      sync.WaitGroup

	mu    sync.Mutex
	drop  int // connections that are closed as soon as they are accepted
	pipes []*pipe
}

// pipe is one connection of a relay.
type pipe struct {
	gate    sync.RWMutex // held for writing while nothing passes, the end of the connection included
	in, out net.Conn
}

// newRelay relays to addr, except for the first drop connections.
func newRelay(t testing.TB, addr string, drop int) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, to: addr, ln: ln, drop: drop}
	t.Cleanup(r.close)
	r.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			r.accepted(in)
		}
	})
	return r
}

func (r *relay) addr() string { return r.ln.Addr().String() }

func (r *relay) accepted(in net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drop > 0 {
		r.drop--
		in.Close()
		return
	}
	out, err := net.Dial("tcp", r.to)
	if err != nil { // the server is gone
		in.Close()
		return
	}
	p := &pipe{in: in, out: out}
	r.pipes = append(r.pipes, p)
	r.wg.Go(func() { p.copy(out, in, &r.sent, nil) })
	r.wg.Go(func() { p.copy(in, out, new(atomic.Int64), &r.spoiled) })
}

func (p *pipe) copy(to, from net.Conn, count *atomic.Int64, spoiled *atomic.Bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.gate.RLock()
		if n > 0 && spoiled != nil && spoiled.Load() {
			buf[0] ^= 0x40
		}
		if err == nil {
			_, err = to.Write(buf[:n])
			count.Add(int64(n))
		}
		if err != nil {
			p.in.Close()
			p.out.Close()
			p.gate.RUnlock()
			return
		}
		p.gate.RUnlock()
	}
}

// freeze stops the connections there are, not those that come, until thaw is called or the test ends.
func (r *relay) freeze() (thaw func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	frozen := r.pipes
	for _, p := range frozen {
		p.gate.Lock()
	}
	thaw = sync.OnceFunc(func() {
		for _, p := range frozen {
			p.gate.Unlock()
		}
	})
	r.t.Cleanup(thaw)
	return thaw
}

// close refuses new connections and ends those there are.
func (r *relay) close() {
	r.ln.Close()
	r.mu.Lock()
	for _, p := range r.pipes {
		p.in.Close()
		p.out.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// A cancelled call costs its connection, so that the next one needs another.
func TestClientDoesNotJoinTheNextRound(t *testing.T) {
	for _, round := range []string{"next round", "nobody"} {
		t.Run(round, func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{})
			net := newRelay(t, s.Addrs()[0].String(), 0)
			c := dial(t, net.addr())
			if err := c.Set(timed(t), "k", nil); err != nil {
				t.Fatal(err)
			}
			thaw := net.freeze()
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := c.Set(short, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("set on a dead network: %v", err)
			}
			if round == "nobody" {
				thaw()
				net.close()
			} else {
				// The network delivers the end of the old connections late.
				s.Reset()
				short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if err := c.Set(short, "old round", nil); err == nil {
					t.Error("a client of the last round has set a key")
				}
				thaw()
			}
			if err := c.Set(timed(t), "old round", nil); !errors.Is(err, rendezvous.ErrStoreClosed) {
				t.Errorf("set in the end: %v", err)
			}
			if there, err := dial(t, s.Addrs()[0].String()).Check(timed(t), "old round"); err != nil || there {
				t.Errorf("the next round's store has a key of the last: %v, %v", there, err)
			}
		})
	}
}

func TestClientKeepsItsStoreAfterCancelledCalls(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	net := newRelay(t, s.Addrs()[0].String(), 0)
	c := dial(t, net.addr())
	for range 3 {
		if err := c.Set(timed(t), "k", nil); err != nil {
			t.Fatal(err)
		}
		thaw := net.freeze()
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.Get(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("get on a dead network: %v", err)
		}
		thaw()
	}
	if there, err := c.Check(timed(t), "k"); err != nil || !there {
		t.Fatal(there, err)
	}
}

func TestCancelledWaitReturnsAtOnce(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	net := newRelay(t, s.Addrs()[0].String(), 0)
	for name, wait := range map[string]func(*tcpstore.Client, context.Context) error{
		"wait":    func(c *tcpstore.Client, ctx context.Context) error { return c.Wait(ctx, "never") },
		"barrier": func(c *tcpstore.Client, ctx context.Context) error { return c.Barrier(ctx, "barrier", 2) },
		"get": func(c *tcpstore.Client, ctx context.Context) error {
			_, err := c.Get(ctx, "never")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, net.addr())
			ctx, cancel := context.WithCancelCause(t.Context())
			waits := make(chan error, 1)
			go func() { waits <- wait(c, ctx) }()
			testutil.Eventually(t, patience, "the wait reaches the server", func() bool { return tcpstore.Waiting(s) == 1 })
			thaw := net.freeze()
			enough := errors.New("enough")
			start := time.Now()
			cancel(enough)
			if err := <-waits; !errors.Is(err, enough) {
				t.Error(err)
			}
			// A server has 5 s to answer that the wait is cancelled.
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("returned after %v", took)
			}
			thaw()
			testutil.Eventually(t, patience, "the server forgets the wait", func() bool { return tcpstore.Waiting(s) == 0 })
			if err := c.Set(timed(t), "k", nil); err != nil {
				t.Error("after the wait:", err)
			}
		})
	}
}

// Close must not wait for the answer to a cancelled wait either.
func TestCloseWithACancelledWait(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	net := newRelay(t, s.Addrs()[0].String(), 0)
	c := dial(t, net.addr())
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- c.Wait(ctx, "never") }()
	testutil.Eventually(t, patience, "the wait reaches the server", func() bool { return tcpstore.Waiting(s) == 1 })
	net.freeze()
	start := time.Now()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.Close()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("closed after %v", took)
	}
}

// What a server that starts anew does to connections must not pass for the refusal of a dialect.
func TestDialSpeaksTheNewestDialectWhateverIsDropped(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	for drop := range 6 {
		c := dial(t, newRelay(t, s.Addrs()[0].String(), drop).addr())
		if err := c.Append(timed(t), "k", nil); err != nil {
			t.Errorf("after %d dropped connections: %v", drop, err)
		}
	}
}

func TestDialWhileTheServerIsReset(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.Reset()
			}
		}
	})
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		c, err := tcpstore.Dial(ctx, s.Addrs()[0].String(), tcpstore.ClientConfig{})
		if err == nil {
			if err := c.Append(ctx, "k", nil); errors.Is(err, errors.ErrUnsupported) {
				t.Error(err)
			}
			c.Close()
		}
		cancel()
	}
}

// scripted is a store that takes the handshake, and then sends answer after the first byte of the next request, again
// and again if endless. It returns its address.
func scripted(t testing.TB, answer string, endless bool) string {
	t.Helper()
	return serve(t, func(conn net.Conn) {
		var probe [10]byte
		io.ReadFull(conn, probe[:])
		conn.Write(probe[6:])
		for { // the questions whether it is still there
			if _, err := io.ReadFull(conn, probe[:1]); err != nil {
				return
			}
			if string(probe[:1]) != opPing {
				break
			}
			io.ReadFull(conn, probe[:4])
			conn.Write(probe[:4])
		}
		_, err := io.WriteString(conn, answer)
		for endless && err == nil {
			_, err = io.WriteString(conn, answer[8:])
		}
		io.Copy(io.Discard, conn)
	})
}

func TestListKeysFromAServerThatLies(t *testing.T) {
	long := strings.Repeat("k", 8<<10)
	for _, tc := range []struct {
		name, answer, want string
		endless            bool
	}{
		{"negative count", u64(-1), "-1 keys", false},
		{"absurd count", u64(1<<62) + strings.Repeat(str(""), 1000), "4611686018427387904 keys", true},
		{"long key", u64(1) + str(long+"k"), "8193 bytes", false},
		{"keys beyond what memory is for", u64(512<<20/48-1000) + strings.Repeat(str(long), 100), "occupy more than", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, scripted(t, tc.answer, tc.endless))
			list, err := c.ListKeys(timed(t))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d keys, error %v", len(list), err)
			}
		})
	}
	c := dial(t, scripted(t, u64(2)+str(long)+str(""), false))
	if list, err := c.ListKeys(timed(t)); err != nil || len(list) != 2 || list[0] != long || list[1] != "" {
		t.Errorf("%d keys, error %v", len(list), err)
	}
}

func TestQueuePopOfAKeyDoesNotSpin(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	net := newRelay(t, s.Addrs()[0].String(), 0)
	c := dial(t, net.addr())
	if err := c.Set(timed(t), "q", nil); err != nil {
		t.Fatal(err)
	}
	before := net.sent.Load()
	short, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	if _, err := c.QueuePop(short, "q"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	// Delays of 1, 2, 4, 8, 16, 32 and then 50 ms leave room for 13 tries.
	try := int64(len(opWait + keys("q") + opQueuePop + str("q")))
	if n := (net.sent.Load() - before) / try; n > 15 {
		t.Errorf("%d tries in 400 ms", n)
	}
	popped := make(chan string, 1)
	go func() {
		v, err := c.QueuePop(timed(t), "q")
		popped <- fmt.Sprint(string(v), err)
	}()
	if err := c.QueuePush(timed(t), "q", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if got := <-popped; got != "v<nil>" {
		t.Error(got)
	}
}

// TestReservedConnection: where no connection can be made any more, whoever has reserved one still has it.
func TestReservedConnection(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	net := newRelay(t, s.Addrs()[0].String(), 0)
	c := dial(t, net.addr())
	reserved := c.Reserve()
	if err := reserved.Set(timed(t), "k", nil); err != nil {
		t.Fatal(err)
	}
	for n := range 3 { // more than a client keeps
		go c.Get(t.Context(), "never") // it ends with the client
		testutil.Eventually(t, 10*time.Second, "the wait is pending", func() bool { return tcpstore.Waiting(s) == n+1 })
	}
	net.ln.Close()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.Set(short, "k", nil); err == nil {
		t.Fatal("a connection was made to an address that nobody listens at")
	}
	for range 3 {
		if err := reserved.Set(timed(t), "k", nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	testutil.Eventually(t, 10*time.Second, "what was reserved ends with the store", func() bool {
		return errors.Is(reserved.Set(timed(t), "k", nil), rendezvous.ErrStoreClosed)
	})
}

// TestSpoiledAnswer: an answer that no store gives is the end of the store for an agent, who then meets the others
// again. It is no error of muster's own.
func TestSpoiledAnswer(t *testing.T) {
	ctx := timed(t)
	s := listen(t, tcpstore.ServerConfig{})
	for name, ask := range map[string]func(c *tcpstore.Client) error{
		"WAIT":      func(c *tcpstore.Client) error { return c.Wait(ctx, "muster/k") },
		"GET":       func(c *tcpstore.Client) error { _, err := c.Get(ctx, "muster/k"); return err },
		"MULTI_GET": func(c *tcpstore.Client) error { _, err := c.MultiGet(ctx, "muster/k"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelay(t, s.Addrs()[0].String(), 0)
			c, err := tcpstore.Dial(ctx, r.addr(), tcpstore.ClientConfig{Private: "muster/"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Set(ctx, "muster/k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			r.spoiled.Store(true)
			if err := ask(c); !errors.Is(err, rendezvous.ErrStoreClosed) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSpoiledGreeting: so it is where another connection to the store is needed, and what answers there is none.
func TestSpoiledGreeting(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	r := newRelay(t, s.Addrs()[0].String(), 0)
	c, err := tcpstore.Dial(timed(t), r.addr(), tcpstore.ClientConfig{Private: "muster/"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	thaw := r.freeze()
	lost, cancel := context.WithCancel(t.Context())
	cancelled := time.AfterFunc(50*time.Millisecond, cancel)
	defer cancelled.Stop()
	if err := c.Set(lost, "muster/k", nil); !errors.Is(err, context.Canceled) { // costs the connection that there is
		t.Fatalf("set on a dead network: %v", err)
	}
	r.spoiled.Store(true)
	thaw()
	if err := c.Set(timed(t), "muster/k", nil); !errors.Is(err, rendezvous.ErrStoreClosed) {
		t.Errorf("%v", err)
	}
}

package tcpstore_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

func TestListenAddresses(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Hosts: []string{"127.0.0.1", "127.0.0.2", "::1"}})
	addrs := s.Addrs()
	if len(addrs) != 3 || s.Port() == 0 {
		t.Fatalf("addresses %v", addrs)
	}
	for i, a := range addrs {
		if int(a.Port()) != s.Port() {
			t.Errorf("port of %v is not %d", a, s.Port())
		}
		c, err := net.Dial("tcp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i > 0 {
			raw{t, c}.ask(hello+opGet+str("k"), str("v"))
		} else {
			raw{t, c}.ask(hello+opSet+str("k")+str("v")+opPing+"ping", "ping")
		}
	}
	all := listen(t, tcpstore.ServerConfig{Hosts: []string{"::"}})
	if c, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(all.Port())).String()); err != nil {
		t.Error("[::] does not take IPv4:", err)
	} else {
		c.Close()
	}
	both := listen(t, tcpstore.ServerConfig{Hosts: []string{"0.0.0.0", "::"}})
	if len(both.Addrs()) != 2 {
		t.Errorf("addresses %v", both.Addrs())
	}
}

func TestListenRefuses(t *testing.T) {
	for name, cfg := range map[string]tcpstore.ServerConfig{
		"a name":           {Hosts: []string{"localhost"}},
		"a port too large": {Port: 65536},
		"a negative port":  {Port: -1},
		"old clients = G2": {OldClients: tcpstore.G2},
	} {
		if s, err := tcpstore.Listen(cfg); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: error %v, want a usage error", name, err)
			if s != nil {
				s.Close()
			}
		}
	}
	if _, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"192.0.2.1"}}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a foreign address: error %v", err)
	}
	taken := listen(t, tcpstore.ServerConfig{Hosts: []string{"127.0.0.2"}})
	_, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1", "127.0.0.2"}, Port: taken.Port()})
	if !errors.Is(err, syscall.EADDRINUSE) || errhint.Of(err) == "" {
		t.Errorf("one of two addresses in use: error %v", err)
	}
}

// TestLimits tries one below, at and one above every limit.
func TestLimits(t *testing.T) {
	testutil.Long(t)
	small := tcpstore.Limits{Key: 10, Value: 100_000, KeysPerReq: 3, RequestBytes: 150_000}
	s := listen(t, tcpstore.ServerConfig{Limits: small})
	defaults := listen(t, tcpstore.ServerConfig{})
	k, v := func(n int) string { return strings.Repeat("k", n) }, func(n int) string { return strings.Repeat("v", n) }
	for _, tc := range []struct {
		name    string
		s       *tcpstore.Server
		limit   int
		request func(n int) string // followed by a PING
	}{
		{"key", s, 10, func(n int) string { return opSet + str(k(n)) + str("") }},
		{"key, default", defaults, 8 << 10, func(n int) string { return opSet + str(k(n)) + str("") }},
		{"value", s, 100_000, func(n int) string { return opSet + str("k") + str(v(n)) }},
		{"value, default", defaults, 8 << 20, func(n int) string { return opSet + str("k") + str(v(n)) }},
		{"appended value", s, 100_000, func(n int) string { return opAppend + str("k") + str(v(n)) }},
		{"queued value", s, 100_000, func(n int) string { return opQueuePush + str("k") + str(v(n)) }},
		{"set keys", s, 3, func(n int) string { return opMultiSet + u64(int64(n)) + strings.Repeat(str("a")+str("b"), n) }},
		{"whole request", s, 150_000 - 1 - 8 - 8 - 1 - 8 - 8 - 1 - 8, func(n int) string {
			return opMultiSet + u64(2) + str("a") + str(v(75_000)) + str("b") + str(v(n-75_000))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for n := tc.limit - 1; n <= tc.limit; n++ {
				c := dialHello(t, tc.s)
				c.ask(tc.request(n)+opPing+"ping", "ping")
				c.Close()
			}
			c := dialHello(t, tc.s)
			// The length alone is refused, so that the write may fail.
			c.Write([]byte(tc.request(tc.limit + 1)))
			c.expectClosed()
		})
	}
	t.Run("keys", func(t *testing.T) {
		c := dialHello(t, defaults)
		c.ask(opCheck+u64(128<<10)+strings.Repeat(str(""), 128<<10), "\x01")
		c.send(opCheck + u64(128<<10+1))
		c.expectClosed()
	})
}

// heap returns the bytes that live objects take.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestAClaimedLengthCostsNothing(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	before := heap()
	for range 200 {
		c := dialHello(t, s)
		c.ask(opPing+"ping", "ping")
		c.send(opSet+str("k")+u64(8<<20), strings.Repeat("v", 20_000))
	}
	other := dialHello(t, s)
	other.alive()
	if grown := heap() - before; grown > 200*100_000 {
		t.Errorf("200 headers that claim 8 MiB each cost %d bytes", grown)
	}
}

func TestIdleConnectionsCostLittle(t *testing.T) {
	const clients = 2000
	s := listen(t, tcpstore.ServerConfig{})
	conns := make([]raw, clients)
	before := heap()
	for i := range conns {
		conns[i] = dialRaw(t, s)
		switch i % 3 {
		case 0:
			conns[i].send(hello)
		case 1:
			conns[i].send(hello[:3])
		}
	}
	other := dialHello(t, s)
	other.alive()
	// Both ends are in this process: net.Conn and the clean-up of the test take some 700 bytes of it.
	if each := (heap() - before) / clients; each > 2048 {
		t.Errorf("an idle client costs %d bytes", each)
	}
	conns[0].alive()
	conns[1].ask(hello[3:]+opPing+"ping", "ping")
	conns[2].send("\x00")
	conns[2].ask(str("k")[:4]+str("k")[4:]+str("v")+"\x02"+str("k"), str("v")) // the SET and GET of an old client
}

func TestRepliesToPipelinedRequestsComeInOneSegment(t *testing.T) {
	c := dialHello(t, listen(t, tcpstore.ServerConfig{Loops: 1}))
	c.alive()
	const n = 100
	c.send(strings.Repeat(opAdd+str("n")+u64(1), n))
	buf := make([]byte, 8*n)
	got, err := c.Read(buf)
	if err != nil || got != 8*n {
		t.Fatalf("first read gives %d bytes of %d (%v)", got, 8*n, err)
	}
}

func TestReaderThatNeverReads(t *testing.T) {
	testutil.Long(t)
	s := listen(t, tcpstore.ServerConfig{
		Limits: tcpstore.Limits{ReplyBuffer: 256 << 10}, StallTimeout: 500 * time.Millisecond, Loops: 1,
	})
	other := dialHello(t, s)
	for _, size := range []int{1000, 1 << 20} { // copied, and sent from where it is stored
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			other.send(opSet + str("v") + str(strings.Repeat("v", size)))
			other.alive()
			before := heap()
			c := dialHello(t, s)
			requests := []byte(strings.Repeat(opGet+str("v"), 1000))
			for sent := 0; sent < 400<<20/size*len(requests)/1000; sent += len(requests) { // asks for 400 MiB
				if _, err := c.Write(requests); err != nil {
					break
				}
				other.alive()
				if grown := heap() - before; grown > 64<<20 {
					t.Fatalf("unread replies take %d bytes", grown)
				}
			}
			other.alive()
			testutil.Eventually(t, patience, "the connection is closed", func() bool {
				_, err := c.Write([]byte(opPing + "ping"))
				return err != nil
			})
			other.alive()
		})
	}
}

func TestSlowReaderGetsEverything(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Limits: tcpstore.Limits{ReplyBuffer: 100 << 10}})
	value := strings.Repeat("0123456789", 10_000)
	c := dialHello(t, s)
	c.send(opSet + str("big") + str(value) + opSet + str("small") + str("s"))
	const n = 300
	go func() { // the requests alone are more than the server takes before it stops reading
		c.Write([]byte(strings.Repeat(opGet+str("big")+opGet+str("small")+opMultiGet+keys("small", "big", "big"), n)))
	}()
	r := bufio.NewReaderSize(c, 3000)
	want := str(value) + str("s") + str("s") + str(value) + str(value)
	got := make([]byte, len(want))
	for i := range n {
		if _, err := io.ReadFull(r, got); err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Fatalf("answer %d is another one", i)
		}
	}
	c.alive()
}

func TestReplyBeyondTheLimitIsRefused(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Limits: tcpstore.Limits{ReplyAtOnce: 100_000}})
	c := dialHello(t, s)
	c.send(opSet + str("k") + str(strings.Repeat("v", 1000)))
	c.send(opMultiGet + keys(slicesRepeat("k", 98)...))
	if _, err := io.CopyN(io.Discard, c, 98*1008); err != nil {
		t.Fatal(err)
	}
	c.send(opMultiGet + keys(slicesRepeat("k", 100)...))
	c.expectClosed() // and not the beginning of an answer
	// The same of LIST_KEYS, one below and above.
	c = dialHello(t, s)
	c.send(opSet + str("gone") + str("") + opSet + str("k") + str("again"))
	c.ask(opDelete+str("gone"), u64(1))
	for i := range 12 {
		c.send(opSet + str(strings.Repeat("n", 8000+i)) + str("")) // 12 names of 8008 bytes and up: 96,162
	}
	rest := 100_000 - 8 - (8 + 1) - 96_162 - 8
	c.ask(opSet+str(strings.Repeat("r", rest))+str("")+opListKeys, u64(14))
	if _, err := io.CopyN(io.Discard, c, 100_000-8); err != nil {
		t.Fatal(err)
	}
	c.ask(opSet+str(strings.Repeat("r", rest+1))+str("")+opDelete+str(strings.Repeat("r", rest)), u64(1))
	c.send(opListKeys)
	c.expectClosed()
}

// TestLastRepliesAreSent has a client end, in one way or another, while the answer to what it asked is on its way.
func TestLastRepliesAreSent(t *testing.T) {
	testutil.Long(t)
	s := listen(t, tcpstore.ServerConfig{
		StallTimeout: 2 * time.Second,
		Limits:       tcpstore.Limits{ReplyBuffer: 1 << 30}, // so that it reads on
	})
	value := strings.Repeat("v", 8<<20)
	setup := dialHello(t, s)
	setup.send(opSet + str("k") + str(value))
	setup.alive()
	const n = 8 // more than any socket buffers
	request := opMultiGet + keys(slicesRepeat("k", n)...)
	for _, tc := range []struct{ name, more string }{{"half-closed", ""}, {"garbage", "\xff"}, {"a huge key", opSet + u64(-1)}} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialHello(t, s)
			c.send(request + tc.more)
			if tc.more == "" {
				c.Conn.(*net.TCPConn).CloseWrite()
			}
			want := int64(n * (8 + len(value)))
			if got, err := io.Copy(io.Discard, c); err != nil || got != want {
				t.Errorf("%d bytes come, want %d (%v)", got, want, err)
			}
		})
	}
	t.Run("unread", func(t *testing.T) {
		c := dialHello(t, s)
		c.send(request + "\xff")
		testutil.Eventually(t, patience, "the connection is closed", func() bool {
			_, err := c.Write([]byte("x"))
			return err != nil
		})
	})
	setup.alive()
}

// TestUnreadRepliesAreBoundedInAll has many clients that each ask for 24 MiB and do not read.
func TestUnreadRepliesAreBoundedInAll(t *testing.T) {
	testutil.Long(t)
	const clients, total = 16, 80 << 20
	s := listen(t, tcpstore.ServerConfig{StallTimeout: patience, Limits: tcpstore.Limits{ReplyTotal: total}})
	other := dialHello(t, s)
	value, n := strings.Repeat("v", 12_000), 2000
	other.send(opSet + str("k") + str(value))
	other.alive()
	before := heap()
	request := opMultiGet + keys(slicesRepeat("k", n)...)
	var conns []raw
	for range clients {
		c := dialHello(t, s)
		c.send(request)
		_, _ = c.Read(make([]byte, 1)) // the whole answer waits now, or the connection was closed
		conns = append(conns, c)
		other.alive()
	}
	testutil.Eventually(t, patience, "unread replies stay within their bound", func() bool { return heap()-before < total+(24<<20) })
	whole := 0
	for _, c := range conns {
		if got, _ := io.CopyN(io.Discard, c, int64(n*(8+len(value))-1)); got == int64(n*(8+len(value))-1) {
			whole++
		}
	}
	if whole == 0 || whole == clients {
		t.Errorf("%d of %d clients get their answer", whole, clients)
	}
	other.alive()
}

// TestGreatestReplies asks for as many keys as a request may have, and for more names than were once allowed.
func TestGreatestReplies(t *testing.T) {
	testutil.Long(t)
	s := listen(t, tcpstore.ServerConfig{})
	c := dialHello(t, s)
	c.send(opSet + str("k") + str(strings.Repeat("v", 600)))
	n := 128 << 10
	c.send(opMultiGet + u64(int64(n)) + strings.Repeat(str("k"), n))
	if _, err := io.CopyN(io.Discard, c, int64(n)*608); err != nil {
		t.Fatal("MULTI_GET:", err)
	}
	c.alive()
	n = 10_000
	name := strings.Repeat("n", 7000)
	for i := range n {
		c.send(opSet + str(fmt.Sprintf("%s%06d", name, i)) + str(""))
	}
	c.ask(opDelete+str("k")+opListKeys, u64(1)+u64(int64(n)))
	if _, err := io.CopyN(io.Discard, c, int64(n)*(8+7006)); err != nil {
		t.Fatal("LIST_KEYS:", err)
	}
	c.alive()
}

func slicesRepeat(s string, n int) []string {
	l := make([]string, n)
	for i := range l {
		l[i] = s
	}
	return l
}

func TestResetBeginsAnew(t *testing.T) {
	testutil.Long(t)
	s := listen(t, tcpstore.ServerConfig{})
	var old []raw
	for i := range 50 {
		c := dialHello(t, s)
		c.send(opSet+str("k")+str("v"), opQueuePush+str("q")+str("v"), opSet+str("big")+str(strings.Repeat("v", 1<<20)))
		if i%2 == 0 {
			c.send(opWait + keys("never"))
		}
		old = append(old, c)
	}
	testutil.Eventually(t, patience, "the waits arrive", func() bool { return tcpstore.Waiting(s) == 25 })
	port := s.Port()
	s.Reset()
	if n := tcpstore.Waiting(s); n != 0 {
		t.Errorf("%d waits are left", n)
	}
	for _, c := range old {
		c.expectClosed()
	}
	if s.Port() != port {
		t.Error("the port has changed")
	}
	c := dialHello(t, s)
	c.ask(opNumKeys+opQueueLen+str("q")+opCheck+keys("k"), u64(0)+u64(0)+"\x01")
}

// TestResetUnderLoad looks for a key of one round in the next.
func TestResetUnderLoad(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				c, err := net.Dial("tcp", s.Addrs()[0].String())
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				for err == nil { // until the next reset
					select {
					case <-stop:
						c.Close()
						return
					default:
					}
					if _, err = c.Write([]byte(hello + opSet + str("k") + str("v") + opWait + keys("k"))); err == nil {
						_, err = io.ReadFull(c, make([]byte, 1))
					}
				}
				c.Close()
			}
		})
	}
	for range 50 {
		s.Reset()
	}
	close(stop)
	wg.Wait()
	s.Reset()
	dialHello(t, s).ask(opNumKeys, u64(0))
}

func TestClose(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	c, waiting := dialHello(t, s), dialHello(t, s)
	c.alive()
	waiting.send(opWait + keys("never"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	c.expectClosed()
	waiting.expectClosed()
	if conn, err := net.Dial("tcp", s.Addrs()[0].String()); err == nil {
		conn.Close()
		t.Error("the port still answers")
	}
	s.Reset()
}

func TestWaitsAcrossConnections(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	a, b, c := dialHello(t, s), dialHello(t, s), dialHello(t, s)
	waiting := func(n int) {
		t.Helper()
		testutil.Eventually(t, patience, fmt.Sprint(n, " waits"), func() bool { return tcpstore.Waiting(s) == n })
	}
	a.send(opWait + keys("x", "y", "x"))
	waiting(1)
	b.send(opSet + str("x") + str(""))
	b.ask(opDelete+str("x"), u64(1)) // seen is seen
	b.send(opAppend + str("y") + str("1"))
	a.expect("\x00")
	a.send(opWait + keys("z"))
	waiting(1)
	a.ask(opCancelWait, "\x01")
	b.send(opSet + str("z") + str(""))
	b.alive()
	a.alive() // no late answer
	// A wait of its own key, on one connection.
	a.send(opWait+keys("own"), opSet+str("own")+str(""))
	a.expect("\x00")
	// One element, one popper, the oldest first.
	a.send(opWait + keys("q"))
	waiting(1)
	c.send(opWait + keys("q"))
	waiting(2)
	b.send(opQueuePush + str("q") + str("e1"))
	a.expect("\x00")
	waiting(1)
	b.send(opQueuePush + str("q") + str("e2"))
	c.expect("\x00")
	a.ask(opQueuePop+str("q"), u64(2)+str("e1"))
	c.ask(opQueuePop+str("q"), u64(1)+str("e2"))
	// A disconnect is forgotten.
	a.send(opWait + keys("never"))
	waiting(1)
	a.Close()
	waiting(0)
}

// TestQueueWakesOneWhoCanPop has somebody wait for a queue behind another one who gets the wake-up first.
func TestQueueWakesOneWhoCanPop(t *testing.T) {
	for _, tc := range []struct {
		name  string
		wait  string // of the first in the line
		woken bool   // the first in the line, by the push
		then  func(first raw)
	}{
		{"the first waits for more", opWait + keys("q", "never"), false, func(raw) {}},
		{"the first disconnects", opWait + keys("q"), true, func(c raw) { c.Close() }},
		{"the first gives up", opWait + keys("q"), true, func(c raw) { c.ask(opCancelWait, "\x01") }},
		{"the first waits for something else", opWait + keys("q"), true, func(c raw) { c.send(opWait + keys("never")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{})
			first, second, pusher := dialHello(t, s), dialHello(t, s), dialHello(t, s)
			waiting := func(n int) {
				t.Helper()
				testutil.Eventually(t, patience, fmt.Sprint(n, " waits"), func() bool { return tcpstore.Waiting(s) == n })
			}
			first.send(tc.wait)
			waiting(1)
			second.send(opWait + keys("q"))
			waiting(2)
			pusher.send(opQueuePush + str("q") + str("e"))
			if tc.woken {
				first.expect("\x00")
			}
			tc.then(first)
			second.expect("\x00")
			second.ask(opQueuePop+str("q"), u64(1)+str("e"))
		})
	}
	t.Run("a queue named twice", func(t *testing.T) {
		s := listen(t, tcpstore.ServerConfig{})
		c, pusher := dialHello(t, s), dialHello(t, s)
		c.send(opWait + keys("q", "q"))
		testutil.Eventually(t, patience, "the wait arrives", func() bool { return tcpstore.Waiting(s) == 1 })
		pusher.send(opQueuePush + str("q") + str("e"))
		c.expect("\x00")
	})
	t.Run("who has popped passes nothing on", func(t *testing.T) {
		s := listen(t, tcpstore.ServerConfig{})
		first, second, pusher := dialHello(t, s), dialHello(t, s), dialHello(t, s)
		first.send(opWait + keys("q"))
		testutil.Eventually(t, patience, "a wait", func() bool { return tcpstore.Waiting(s) == 1 })
		second.send(opWait + keys("q"))
		testutil.Eventually(t, patience, "two waits", func() bool { return tcpstore.Waiting(s) == 2 })
		pusher.send(opQueuePush + str("q") + str("e"))
		first.expect("\x00")
		first.ask(opQueuePop+str("q")+opCancelWait, u64(1)+str("e")+"\x01")
		second.ask(opCancelWait, "\x01") // the only answer: it was not woken
	})
}

// TestKnownDifferences are accidents of PyTorch 2.15.0's libuv server, seen there, that ours does not repeat. The
// random sequences of TestPyTorch keep away from them.
func TestKnownDifferences(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	a, b := dialHello(t, s), dialHello(t, s)
	waiting := func(n int) {
		t.Helper()
		testutil.Eventually(t, patience, fmt.Sprint(n, " waits"), func() bool { return tcpstore.Waiting(s) == n })
	}
	t.Run("a refused compare-and-set of a missing key wakes nobody", func(*testing.T) {
		a.send(opWait + keys("k"))
		waiting(1)
		b.ask(opCompareSet+str("k")+str("other")+str("x"), str("other"))
		waiting(1)
		b.send(opSet + str("k") + str(""))
		a.expect("\x00")
	})
	t.Run("setting the key of a barrier does not open it", func(*testing.T) {
		a.send(opBarrier + str("bar") + u64(2))
		waiting(1)
		b.send(opSet + str("bar") + str("1"))
		b.alive()
		waiting(1)
		b.ask(opBarrier+str("bar")+u64(2), "\x00")
		a.expect("\x00")
	})
	t.Run("the first arrival at a barrier wakes those who wait for its key", func(*testing.T) {
		a.send(opWait + keys("bar2"))
		waiting(1)
		b.send(opBarrier + str("bar2") + u64(2))
		a.expect("\x00")
		b.ask(opCancelWait, "\x01")
	})
	t.Run("a queue beside a missing key", func(*testing.T) {
		b.send(opQueuePush + str("q") + str("e"))
		b.alive()
		a.send(opWait + keys("q", "missing"))
		waiting(1)
		b.send(opSet + str("missing") + str(""))
		a.expect("\x00")
	})
	t.Run("a queue is no key", func(*testing.T) {
		a.ask(opCheck+keys("q")+opGet+str("q")+opDelete+str("q"), "\x00"+str("")+u64(0))
	})
	t.Run("a missing key is empty, not the end", func(*testing.T) {
		a.ask(opMultiGet+keys("none", "none"), str("")+str(""))
	})
	t.Run("a client of PyTorch 1 whose wait timed out stays in step", func(t *testing.T) {
		old := dialRaw(t, s)
		old.send("\x05" + keys("late"))
		waiting(1)
		old.ask("\x03"+str("sum")+u64(2), u64(2)) // it gave up, and goes on
		b.send(opSet + str("late") + str(""))
		b.alive()
		old.ask("\x03"+str("sum")+u64(2), u64(4))
	})
}

// TestManyAtOnce has connections of several loops change and wait for the same keys; the race detector watches.
func TestManyAtOnce(t *testing.T) {
	const clients, rounds = 16, 40
	s := listen(t, tcpstore.ServerConfig{Loops: 4})
	var wg sync.WaitGroup
	for range clients {
		c := dialHello(t, s)
		wg.Go(func() {
			for i := range rounds {
				name := fmt.Sprint("barrier ", i)
				if _, err := c.Write([]byte(opAdd + str("n") + u64(1) + opBarrier + str(name) + u64(clients))); err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	dialHello(t, s).ask(opGet+str("n"), str(strconv.Itoa(clients*rounds)))
}

package netprobe_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"muster/internal/check"
	"muster/internal/testutil"
	"muster/netcheck/netprobe"
)

func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(soon))
	return c
}

// letIn shakes hands as a client does.
func letIn(t testing.TB, c net.Conn, token []byte) {
	t.Helper()
	ours := bytes.Repeat([]byte{7}, nonceSize)
	c.Write(append([]byte(netprobe.Banner), ours...))
	first := make([]byte, 1+nonceSize)
	if _, err := io.ReadFull(c, first); err != nil || first[0] != 0 {
		t.Fatalf("%v %v", first, err)
	}
	c.Write(proofOf(token, "client", ours, first[1:]))
	second := make([]byte, 33)
	if _, err := io.ReadFull(c, second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(second[1:], proofOf(token, "server", ours, first[1:])) {
		t.Fatal("the server's proof is wrong")
	}
}

// message frames v.
func message(v any) []byte {
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		text = string(b)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func ask(t testing.TB, c net.Conn, v any) map[string]any {
	t.Helper()
	c.Write(message(v))
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		t.Fatalf("no answer to %v: %v", v, err)
	}
	text := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, text); err != nil {
		t.Fatal(err)
	}
	a := map[string]any{}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return a
}

// ends waits for the server's end of a connection.
func ends(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server does not close the connection")
	}
}

// alive probes the server as a friend.
func alive(t testing.TB, addr string) {
	t.Helper()
	cfg := config("friend")
	cfg.Streams, cfg.Tries, cfg.Echoes, cfg.Sizes = []int{}, 1, 20, []int{}
	if f := pair(t, cfg, addr); f.Error != "" || f.RTT.Count == 0 {
		t.Fatalf("the server does not work any more: %s", pretty(f))
	}
}

const nonceSize = 32

// proofOf is what shows that one has the token, as the handshake's page says.
func proofOf(token []byte, who string, client, server []byte) []byte {
	h := hmac.New(sha256.New, token)
	h.Write(append([]byte(who+"\x00"), append(slices.Clone(client), server...)...))
	return h.Sum(nil)
}

// TestStrangers: what does not shake hands is shown nothing but a number that nobody has used.
func TestStrangers(t *testing.T) {
	addr := serve(t, config("there")).String()
	hello := append([]byte(netprobe.Banner), make([]byte, nonceSize)...)
	for name, c := range map[string]struct {
		sends []byte
		gets  int // bytes at most
	}{
		"nothing":        {nil, 0},
		"half a hello":   {hello[:9], 0},
		"HTTP":           {[]byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n"), 0},
		"no proof":       {hello, 33},
		"a wrong proof":  {append(slices.Clone(hello), make([]byte, 32)...), 34},
		"another hello":  {append([]byte("muster-probe 2\r\n"), make([]byte, 64)...), 0},
		"much of no use": {bytes.Repeat([]byte{0xff}, 1<<20), 0},
	} {
		conn := dial(t, addr)
		conn.Write(c.sends)
		conn.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
		if len(got) > c.gets {
			t.Errorf("%s: got %d bytes %q, want at most %d", name, len(got), got, c.gets)
		}
	}
	alive(t, addr)
}

// TestReplay: what one connection has shown does not open another one.
func TestReplay(t *testing.T) {
	addr := serve(t, config("there")).String()
	ours := bytes.Repeat([]byte{7}, nonceSize)
	var proof []byte
	for i := range 2 {
		c := dial(t, addr)
		c.Write(append([]byte(netprobe.Banner), ours...))
		first := make([]byte, 1+nonceSize)
		if _, err := io.ReadFull(c, first); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			proof = proofOf(token, "client", ours, first[1:])
		}
		c.Write(proof)
		var status [1]byte
		if _, err := io.ReadFull(c, status[:]); err != nil || status[0] != byte(2*i) {
			t.Errorf("connection %d: status %v %v", i, status, err)
		}
	}
}

// TestHostileRequests come from somebody who has the token, or from a friend gone mad.
func TestHostileRequests(t *testing.T) {
	addr := serve(t, config("there")).String()
	type m = map[string]any
	for name, c := range map[string]struct {
		v     any
		words string
	}{
		"an unknown request":    {m{"op": "format\n"}, "another version"},
		"no request":            {m{}, "another version"},
		"not JSON":              {"hello", "cannot be understood"},
		"a deep one":            {strings.Repeat("[", 100_000), "cannot be understood"},
		"a field of other kind": {m{"op": 7}, "cannot be understood"},
		"echoes":                {m{"op": "echo", "echoes": 1 << 30}, "cannot echo"},
		"negative echoes":       {m{"op": "echo", "echoes": -1}, "cannot echo"},
		"streams":               {m{"op": "run", "direction": "out", "streams": 1 << 20, "timed_ns": 1000}, "cannot take part"},
		"a direction":           {m{"op": "run", "direction": "up", "streams": 1, "timed_ns": 1000}, "cannot take part"},
		"a long run":            {m{"op": "run", "direction": "out", "streams": 1, "timed_ns": int64(time.Hour)}, "cannot take part"},
		"a negative run":        {m{"op": "run", "direction": "out", "streams": 1, "timed_ns": -1}, "cannot take part"},
		"a run that overflows":  {m{"op": "run", "direction": "out", "streams": 1, "timed_ns": int64(1) << 62, "warm_up_ns": int64(1) << 62}, "cannot take part"},
		"tries":                 {m{"op": "reach", "port": 1, "tries": 1 << 20, "patience_ns": 1, "limit_ns": 1}, "cannot connect back"},
		"port 0":                {m{"op": "sizes"}, "port 0"},
		"a run nobody opened":   {m{"op": "join", "run": "xyz"}, "there is not"},
		"a long name":           {m{"op": "join", "run": strings.Repeat("x", 100)}, "named by 100 bytes"},
		"a result of nothing":   {m{"op": "result"}, "was not opened"},
	} {
		conn := dial(t, addr)
		letIn(t, conn, token)
		if a := ask(t, conn, c.v); a["error"] == nil || !strings.Contains(a["error"].(string), c.words) || strings.Contains(a["error"].(string), "\n") {
			t.Errorf("%s: %v, want %q", name, a, c.words)
		}
		conn.Close()
	}
	// Lengths at the limit and beyond.
	for _, n := range []uint32{netprobe.MaxMessage + 1, 1 << 31, 1<<32 - 1} {
		conn := dial(t, addr)
		letIn(t, conn, token)
		conn.Write(binary.BigEndian.AppendUint32(nil, n))
		ends(t, conn)
	}
	conn := dial(t, addr)
	letIn(t, conn, token)
	if a := ask(t, conn, `{"op":"about"`+strings.Repeat(" ", netprobe.MaxMessage-14)+"}"); a["error"] != nil {
		t.Errorf("a message of %d bytes: %v", netprobe.MaxMessage, a)
	}
	alive(t, addr)
}

// TestRunIsHeldByOne: a run that a client opened and forgot ends with its connection, and does not keep others waiting.
func TestRunIsHeldByOne(t *testing.T) {
	t.Parallel()
	addr := serve(t, config("there")).String()
	open := map[string]any{"op": "run", "direction": "back", "streams": 2, "timed_ns": int64(time.Second)}
	one, two := dial(t, addr), dial(t, addr)
	letIn(t, one, token)
	letIn(t, two, token)
	run := ask(t, one, open)["run"]
	if a := ask(t, two, open); a["busy"] != true {
		t.Errorf("a second run at the same time: %v", a)
	}
	// A stream joins and stays alone: it is told that the run is over, whether it came before its end or after it.
	stream := dial(t, addr)
	letIn(t, stream, token)
	stream.Write(message(map[string]any{"op": "join", "run": run}))
	one.Close()
	if _, err := io.ReadFull(stream, make([]byte, 4)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the stream still waits")
	}
	late := dial(t, addr)
	letIn(t, late, token)
	if a := ask(t, late, map[string]any{"op": "join", "run": run}); a["error"] == nil {
		t.Errorf("joined a run that is over: %v", a)
	}
	end := time.Now().Add(soon)
	for ask(t, two, open)["busy"] == true {
		if time.Now().After(end) {
			t.Fatal("the run was not given back")
		}
	}
}

// TestTooManyConnections: those above the limit are told, and the others are served on.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	cfg := config("there")
	cfg.MaxConns = 3
	addr := serve(t, cfg).String()
	var held []net.Conn
	for range 3 {
		c := dial(t, addr)
		letIn(t, c, token)
		held = append(held, c)
	}
	extra := dial(t, addr)
	if got, err := io.ReadAll(extra); len(got) != 1 || got[0] != 1 {
		t.Errorf("one more is told %v, %v", got, err)
	}
	here := config("here")
	here.Tries, here.Gap = 3, time.Millisecond
	if f := pair(t, here, addr); !strings.Contains(f.Error, "busy") || !strings.Contains(f.Hint, "try again") {
		t.Errorf("%s", pretty(f))
	}
	if a := ask(t, held[0], map[string]any{"op": "about"}); a["node"] == nil {
		t.Errorf("%v", a)
	}
	for _, c := range held {
		c.Close()
	}
	end := time.Now().Add(soon)
	for {
		here.Tries = 1
		if f := pair(t, here, addr); f.RTT.Count > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the server lets nobody in any more")
		}
	}
}

// TestServerEnds: whatever its clients do, or do not, the server ends when its context does.
func TestServerEnds(t *testing.T) {
	s, err := netprobe.Listen(t.Context(), config("there"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx) }()
	addr := s.Addr().String()
	dial(t, addr)
	idle := dial(t, addr)
	letIn(t, idle, token)
	control := dial(t, addr)
	letIn(t, control, token)
	run := ask(t, control, map[string]any{"op": "run", "direction": "back", "streams": 1, "timed_ns": int64(20 * time.Second)})["run"]
	stream := dial(t, addr)
	letIn(t, stream, token)
	ask(t, stream, map[string]any{"op": "join", "run": run}) // and reads nothing of it
	sizes := dial(t, addr)
	letIn(t, sizes, token)
	if a := ask(t, sizes, map[string]any{"op": "sizes", "port": 9}); a["port"] == nil {
		t.Error(a)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(soon):
		t.Fatal("the server does not end")
	}
}

// TestPeerStops: the other node is stopped at some point of the probe. What was measured before stays, and the time is
// bounded.
func TestPeerStops(t *testing.T) {
	testutil.Long(t)
	behind := serve(t, config("there")).String()
	for name, c := range map[string]struct {
		after func(total int, sent []byte) bool // looks at what a client sends; from then on nothing passes
		look  func(*testing.T, netprobe.Facts)
	}{
		"at the first request": {
			func(_ int, b []byte) bool { return bytes.Contains(b, []byte(`"about"`)) },
			func(t *testing.T, f netprobe.Facts) {
				if !strings.Contains(f.Error, "about") || f.RTT.Count != 0 {
					t.Errorf("%s", pretty(f))
				}
			},
		},
		"at the echo": {
			func(_ int, b []byte) bool { return bytes.Contains(b, []byte(`"echo"`)) },
			func(t *testing.T, f netprobe.Facts) {
				if !strings.Contains(f.Error, "echo 0") || f.To.Name != "there" {
					t.Errorf("%s", pretty(f))
				}
			},
		},
		"in a run": {
			func(total int, _ []byte) bool { return total > 1<<20 },
			func(t *testing.T, f netprobe.Facts) {
				if f.NoBulk == "" || f.RTT.Count == 0 || f.Error != "" {
					t.Errorf("%s", pretty(f))
				}
			},
		},
		"before its result": {
			func(_ int, b []byte) bool { return bytes.Contains(b, []byte(`"result"`)) },
			func(t *testing.T, f netprobe.Facts) {
				if !strings.Contains(f.NoBulk, "result") {
					t.Errorf("%s", pretty(f))
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wedge{after: c.after, end: make(chan struct{})}
			addr := listener(t, func(client net.Conn) {
				server, err := net.Dial("tcp", behind)
				if err != nil {
					t.Error(err)
					return
				}
				var wg sync.WaitGroup
				wg.Go(func() { w.pass(client, server, false); client.Close() })
				w.pass(server, client, true)
				server.Close()
				wg.Wait()
			})
			t.Cleanup(func() { close(w.end) })
			cfg := config("here")
			cfg.Tries, cfg.EchoTime = 2, 200*time.Millisecond
			f := pair(t, cfg, addr)
			c.look(t, f)
			if f.Took > cfg.Budget+5*time.Second {
				t.Errorf("it took %v", f.Took)
			}
			for _, r := range netprobe.Judge([]netprobe.Facts{f}, netprobe.Limits{}) {
				if r.ID == "net-bandwidth" && r.Status != check.Skip {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// wedge stands between nodes, and stops to pass anything on from some moment.
type wedge struct {
	after func(total int, sent []byte) bool
	end   chan struct{} // of the test

	mu      sync.Mutex
	total   int
	stopped bool
}

func (w *wedge) pass(to, from net.Conn, watch bool) {
	b := make([]byte, 256<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		w.mu.Lock()
		if watch {
			w.total += n
			w.stopped = w.stopped || w.after(w.total, b[:n])
		}
		stopped := w.stopped
		w.mu.Unlock()
		if stopped {
			<-w.end
			return
		}
		to.Write(b[:n])
	}
}

// TestPeerLies: what another node says is not trusted where it cannot be.
func TestPeerLies(t *testing.T) {
	t.Parallel()
	type m = map[string]any
	for name, c := range map[string]struct {
		answers map[string]any // by request
		look    func(*testing.T, netprobe.Facts)
	}{
		"of itself": {m{"about": m{
			"node": m{"Name": "evil\x1b[2J\n" + strings.Repeat("x", 1000), "NCCL": m{"Iface": strings.Repeat("y", 1000)}, "RDMA": m{"Ports": make([]m, 1000)}},
			"end":  m{"Addr": "10.0.0.1", "Iface": "a\tb", "MTU": -7, "Speed": -1},
		}}, func(t *testing.T, f netprobe.Facts) {
			if strings.ContainsAny(f.To.Name+f.Remote.Iface, "\x1b\n\t") || len(f.To.Name) > 300 || len(f.To.NCCL.Iface) > 100 || len(f.To.RDMA.Ports) > 256 ||
				f.Remote.MTU != 0 || f.Remote.Speed != 0 {
				t.Errorf("%s", pretty(f))
			}
		}},
		"of tries": {m{"reach": m{"tries": m{"Done": 7, "Failed": 9}}}, func(t *testing.T, f netprobe.Facts) {
			if f.Reach.Back.Skip == "" || f.Reach.Back.Done != 0 {
				t.Errorf("%+v", f.Reach)
			}
		}},
		"with an error full of control characters": {m{"about": m{"error": "no\x1b[31m\r\n" + strings.Repeat("z", 10000)}}, func(t *testing.T, f netprobe.Facts) {
			if f.Error == "" || len(f.Error) > 400 || strings.ContainsAny(f.Error, "\x1b\r\n") {
				t.Errorf("%q", f.Error)
			}
		}},
		"with a message that is too long": {m{"about": nil}, func(t *testing.T, f netprobe.Facts) {
			if !strings.Contains(f.Error, "exceeds the limit") {
				t.Errorf("%q", f.Error)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := listener(t, func(conn net.Conn) {
				if !welcome(conn) {
					return
				}
				for {
					var size [4]byte
					if _, err := io.ReadFull(conn, size[:]); err != nil {
						return
					}
					text := make([]byte, min(1<<16, binary.BigEndian.Uint32(size[:])))
					if _, err := io.ReadFull(conn, text); err != nil {
						return
					}
					var r struct{ Op string }
					json.Unmarshal(text, &r)
					a, known := c.answers[r.Op]
					switch {
					case known && a == nil:
						conn.Write([]byte{0xff, 0, 0, 0})
					case known:
						conn.Write(message(a))
					default:
						conn.Write(message(m{}))
					}
				}
			})
			cfg := config("here")
			cfg.Tries, cfg.ServePort, cfg.Echoes = 10, 9, 10
			c.look(t, pair(t, cfg, addr))
		})
	}
}

// welcome shakes hands as a server does, and reports whether that went well.
func welcome(conn net.Conn) bool {
	b := make([]byte, len(netprobe.Banner)+nonceSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		return false
	}
	theirs, ours := b[len(netprobe.Banner):], bytes.Repeat([]byte{9}, nonceSize)
	conn.Write(append([]byte{0}, ours...))
	if _, err := io.ReadFull(conn, make([]byte, 32)); err != nil {
		return false
	}
	conn.Write(append([]byte{0}, proofOf(token, "server", theirs, ours)...))
	return true
}

// TestClockAhead gives the other node another clock.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{90 * time.Millisecond, -3 * time.Second} {
		s, err := netprobe.Listen(t.Context(), config("there"))
		if err != nil {
			t.Fatal(err)
		}
		s.SetClock(func() time.Time { return time.Now().Add(ahead) })
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- s.Serve(ctx) }()
		cfg := config("here")
		cfg.Streams = []int{}
		f := pair(t, cfg, s.Addr().String())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if wrong := (f.Clock.Offset - ahead).Abs(); wrong > f.Clock.Error+time.Microsecond || f.Clock.Error > time.Second {
			t.Errorf("%v ahead: %+v", ahead, f.Clock)
		}
		if r := verdict(netprobe.Judge([]netprobe.Facts{f}, netprobe.Limits{}), "clock-offset"); r.Status < check.Warn && f.Clock.Error < 10*time.Millisecond {
			t.Errorf("%+v", r)
		}
	}
}

// FuzzServer sends bytes, before the handshake or after it. The server stays well.
func FuzzServer(f *testing.F) {
	f.Add(true, message(map[string]any{"op": "about"}))
	f.Add(true, append(message(map[string]any{"op": "echo", "echoes": 2}), make([]byte, 128)...))
	f.Add(true, message(map[string]any{"op": "run", "direction": "out", "streams": 1, "timed_ns": 1000000}))
	f.Add(true, message(map[string]any{"op": "sizes", "port": 9}))
	f.Add(false, []byte(netprobe.Banner))
	f.Add(false, []byte{})
	f.Add(true, []byte{0, 0, 0, 2, '{'})
	cfg := config("there")
	addr := serve(f, cfg).String()
	f.Fuzz(func(t *testing.T, friend bool, data []byte) {
		if bytes.Contains(data, []byte(`"reach"`)) || len(data) > 1<<20 {
			t.Skip("it connects back for seconds")
		}
		c := dial(t, addr)
		if friend {
			letIn(t, c, token)
		}
		c.Write(data)
		c.(*net.TCPConn).CloseWrite()
		ends(t, c)
	})
}

// FuzzClient answers a client with bytes after the handshake. It ends in time, with facts that can be judged.
func FuzzClient(f *testing.F) {
	f.Add(message(map[string]any{"node": map[string]any{"Name": "n"}}))
	f.Add(append(message(map[string]any{"node": map[string]any{"Name": "n"}}), make([]byte, 640)...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		addr := listener(t, func(c net.Conn) {
			if welcome(c) {
				c.Write(data)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			}
		})
		cfg := config("here")
		cfg.Tries, cfg.Echoes, cfg.Gap, cfg.SizeTries, cfg.SizePatience = 1, 10, time.Millisecond, 1, 10*time.Millisecond
		cfg.WarmUp, cfg.Timed, cfg.Budget = time.Millisecond, 20*time.Millisecond, 3*time.Second
		facts := pair(t, cfg, addr)
		text := pretty(netprobe.Judge([]netprobe.Facts{facts}, netprobe.Limits{})) + pretty(netprobe.JudgeNodes(netprobe.Nodes([]netprobe.Facts{facts})))
		if strings.Contains(text, "\\u001b") {
			t.Errorf("an escape in a result: %s", text)
		}
	})
}

// FuzzDatagram: no bytes pass for a datagram of this connection.
func FuzzDatagram(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 5, 220})
	f.Add(make([]byte, 28))
	f.Fuzz(func(t *testing.T, data []byte) {
		if netprobe.ReadDatagram(data, []byte("a key")) {
			t.Errorf("%x was taken", data)
		}
	})
}

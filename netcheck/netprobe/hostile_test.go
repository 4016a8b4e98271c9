package netprobe_test

import (
	"bytes"
	"context"
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
	"muster/internal/peertls"
	"muster/internal/testutil"
	"muster/netcheck/netprobe"
)

// dial connects to a server by its identity, and says nothing.
func dial(t testing.TB, id string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", peertls.Identity(id).Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(soon))
	return c
}

var domain = peertls.Domain{Token: token, Purpose: "probes"}

// friend connects as a client that has the token.
func friend(t testing.TB, id string) *peertls.Conn {
	t.Helper()
	c, err := domain.Client(t.Context(), dial(t, id), peertls.Identity(id))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hostile is a server that has the token. It serves until the test ends.
func hostile(t testing.TB, serve func(*peertls.Conn)) (id string) {
	t.Helper()
	var a *peertls.Acceptor
	ready := make(chan struct{})
	id = listener(t, func(c net.Conn) {
		<-ready
		if proven, err := a.Server(context.Background(), c); err == nil {
			serve(proven)
		}
	})
	a = domain.Acceptor(peertls.Identity(id))
	close(ready)
	return id
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

// TestPeersWithoutToken: what has not the token is told no more than that.
func TestPeersWithoutToken(t *testing.T) {
	id := serve(t, config("there"))
	for name, text := range map[string][]byte{
		"nothing": nil, "HTTP": []byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n"), "much of no use": bytes.Repeat([]byte{0xff}, 1<<20),
		"what clients said once": []byte("muster-probe 1\r\n" + strings.Repeat("n", 32)), "half a hello": {22, 3, 1, 1, 0, 1, 0},
	} {
		conn := dial(t, id)
		conn.Write(text)
		conn.(*net.TCPConn).CloseWrite()
		got, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
		if len(got) > 7 { // an alert
			t.Errorf("%s: got %d bytes %q", name, len(got), got)
		}
	}
	alive(t, id)
}

// TestRelayToAnotherNode: what leads a probe to another node of the job is found out.
func TestRelayToAnotherNode(t *testing.T) {
	meant, other := serve(t, config("meant")), serve(t, config("other"))
	relay := func(to string) string {
		return listener(t, func(c net.Conn) {
			server := dial(t, to)
			go func() { io.Copy(server, c); server.Close() }()
			io.Copy(c, server)
		})
	}
	_, nonce, _ := strings.Cut(meant, "/")
	for to, words := range map[string]string{meant: "", other: "not the agent that is meant"} {
		r := relay(to)
		cfg := config("here")
		cfg.Streams, cfg.Tries, cfg.Echoes, cfg.Sizes = []int{}, 1, 20, []int{}
		f := pair(t, cfg, strings.Split(r, "/")[0]+"/"+nonce)
		if !strings.Contains(f.Error, "not the agent that is meant") { // its address is part of what it is
			t.Errorf("%s: %s", words, pretty(f))
		}
	}
	alive(t, meant)
	alive(t, other)
}

// TestManyPeersWithoutToken: connections that prove nothing leave room for those that do.
func TestManyPeersWithoutToken(t *testing.T) {
	id := serve(t, config("there"))
	addr := peertls.Identity(id).Addr()
	for range 500 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
		c, err := d.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	alive(t, id)
}

// TestHostileRequests come from somebody who has the token, or from a friend gone mad.
func TestHostileRequests(t *testing.T) {
	addr := serve(t, config("there"))
	type m = map[string]any
	for name, c := range map[string]struct {
		v     any
		words string
	}{
		"an unknown request":    {m{"op": "format\n"}, "another version"},
		"no request":            {m{}, "another version"},
		"not JSON":              {"hello", "cannot read a message"},
		"a deep one":            {strings.Repeat("[", 100_000), "cannot read a message"},
		"a field of other kind": {m{"op": 7}, "cannot read a message"},
		"echoes":                {m{"op": "echo", "echoes": 1 << 30}, "cannot echo"},
		"negative echoes":       {m{"op": "echo", "echoes": -1}, "cannot echo"},
		"streams":               {m{"op": "run", "direction": "out", "streams": 1 << 20, "timed_ns": 1000}, "cannot take part"},
		"a direction":           {m{"op": "run", "direction": "up", "streams": 1, "timed_ns": 1000}, "cannot take part"},
		"a long run":            {m{"op": "run", "direction": "out", "streams": 1, "timed_ns": int64(time.Hour)}, "cannot take part"},
		"a negative run":        {m{"op": "run", "direction": "out", "streams": 1, "timed_ns": -1}, "cannot take part"},
		"a run that overflows": {m{
			"op": "run", "direction": "out", "streams": 1, "timed_ns": int64(1) << 62,
			"warm_up_ns": int64(1) << 62,
		}, "cannot take part"},
		"tries": {m{"op": "reach", "port": 1, "tries": 1 << 20, "patience_ns": 1, "limit_ns": 1}, "cannot connect back"},
		"nobody to reach": {
			m{"op": "reach", "port": 1, "tries": 1, "patience_ns": 1, "limit_ns": 1, "from": "x\n/../.."},
			"cannot connect back",
		},
		"port 0":              {m{"op": "sizes"}, "port 0"},
		"a run nobody opened": {m{"op": "join", "run": "xyz"}, "there is not"},
		"a long name":         {m{"op": "join", "run": strings.Repeat("x", 100)}, "named by 100 bytes"},
		"a result of nothing": {m{"op": "result"}, "was not opened"},
	} {
		conn := friend(t, addr)
		if a := ask(t, conn, c.v); a["error"] == nil || !strings.Contains(a["error"].(string), c.words) ||
			strings.Contains(a["error"].(string), "\n") {
			t.Errorf("%s: %v, want %q", name, a, c.words)
		}
		conn.Close()
	}
	// Lengths at the limit and beyond.
	for _, n := range []uint32{netprobe.MaxMessage + 1, 1 << 31, 1<<32 - 1} {
		conn := friend(t, addr)
		conn.Write(binary.BigEndian.AppendUint32(nil, n))
		ends(t, conn)
	}
	conn := friend(t, addr)
	if a := ask(t, conn, `{"op":"about"`+strings.Repeat(" ", netprobe.MaxMessage-14)+"}"); a["error"] != nil {
		t.Errorf("a message of %d bytes: %v", netprobe.MaxMessage, a)
	}
	alive(t, addr)
}

// TestRunIsHeldByOne: a run that a client opened and forgot ends with its connection, and does not keep others waiting.
func TestRunIsHeldByOne(t *testing.T) {
	t.Parallel()
	addr := serve(t, config("there"))
	open := map[string]any{"op": "run", "direction": "back", "streams": 2, "timed_ns": int64(time.Second)}
	one, two := friend(t, addr), friend(t, addr)
	run := ask(t, one, open)["run"]
	if a := ask(t, two, open); a["busy"] != true {
		t.Errorf("a second run at the same time: %v", a)
	}
	// A stream joins and stays alone: it is told that the run is over, whether it came before its end or after it.
	stream := friend(t, addr)
	stream.Write(message(map[string]any{"op": "join", "run": run}))
	one.Close()
	if _, err := io.ReadFull(stream, make([]byte, 4)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the stream still waits")
	}
	late := friend(t, addr)
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
	testutil.Long(t)
	t.Parallel()
	cfg := config("there")
	cfg.MaxConns = 3
	addr := serve(t, cfg)
	var held []net.Conn
	for range 3 {
		c := friend(t, addr)
		ask(t, c, map[string]any{"op": "about"}) // the server has it, too
		held = append(held, c)
	}
	extra := dial(t, addr)
	if got, err := io.ReadAll(extra); !bytes.Equal(got, []byte{21, 3, 3, 0, 2, 2, 90}) { // TLS's user_canceled
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
	addr := s.Identity()
	dial(t, addr)
	friend(t, addr) // and says nothing
	control := friend(t, addr)
	run := ask(t, control, map[string]any{"op": "run", "direction": "back", "streams": 1, "timed_ns": int64(20 * time.Second)})["run"]
	stream := friend(t, addr)
	ask(t, stream, map[string]any{"op": "join", "run": run}) // and reads nothing of it
	sizes := friend(t, addr)
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
	behind := serve(t, config("there"))
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
			addr := hostile(t, func(client *peertls.Conn) { // it has the token, so it can be the other node to each of the two
				server := friend(t, behind)
				server.SetDeadline(time.Time{})
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

func (w *wedge) pass(to, from *peertls.Conn, watch bool) {
	b := make([]byte, 32<<10)
	var in, out net.Conn = from, to
	for {
		n, err := in.Read(b)
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
		out.Write(b[:n])
		if watch && bytes.Contains(b[:n], []byte(`"join"`)) { // what follows is not encrypted
			in, out = from.NetConn(), to.NetConn()
		}
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
			"node": m{
				"Name": "evil\x1b[2J\n" + strings.Repeat("x", 1000), "NCCL": m{"Iface": strings.Repeat("y", 1000)},
				"RDMA": m{"Ports": make([]m, 1000)},
			},
			"end": m{"Addr": "10.0.0.1", "Iface": "a\tb", "MTU": -7, "Speed": -1},
		}}, func(t *testing.T, f netprobe.Facts) {
			if strings.ContainsAny(f.To.Name+f.Remote.Iface, "\x1b\n\t") || len(f.To.Name) > 300 || len(f.To.NCCL.Iface) > 100 ||
				len(f.To.RDMA.Ports) > 256 ||
				f.Remote.MTU != 0 || f.Remote.Speed != 0 {
				t.Errorf("%s", pretty(f))
			}
		}},
		"of tries": {m{"reach": m{"tries": m{"Done": 7, "Failed": 9}}}, func(t *testing.T, f netprobe.Facts) {
			if f.Reach.Back.Skip == "" || f.Reach.Back.Done != 0 {
				t.Errorf("%+v", f.Reach)
			}
		}},
		"with an error full of control characters": {
			m{"about": m{"error": "no\x1b[31m\r\n" + strings.Repeat("z", 10000)}},
			func(t *testing.T, f netprobe.Facts) {
				if f.Error == "" || len(f.Error) > 400 || strings.ContainsAny(f.Error, "\x1b\r\n") {
					t.Errorf("%q", f.Error)
				}
			},
		},
		"with a message that is too long": {m{"about": nil}, func(t *testing.T, f netprobe.Facts) {
			if !strings.Contains(f.Error, "exceeds the limit") {
				t.Errorf("%q", f.Error)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			addr := hostile(t, func(conn *peertls.Conn) {
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
			cfg.Tries, cfg.Serve, cfg.Echoes = 10, string(peertls.NewIdentity("127.0.0.1:9")), 10
			c.look(t, pair(t, cfg, addr))
		})
	}
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
		f := pair(t, cfg, s.Identity())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if wrong := (f.Clock.Offset - ahead).Abs(); wrong > f.Clock.Error+time.Microsecond || f.Clock.Error > time.Second {
			t.Errorf("%v ahead: %+v", ahead, f.Clock)
		}
		if r := verdict(netprobe.Judge([]netprobe.Facts{f}, netprobe.Limits{}), "clock-offset"); r.Status < check.Warn &&
			f.Clock.Error < 10*time.Millisecond {
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
	f.Add(false, []byte{22, 3, 1, 0, 1, 1})
	f.Add(false, []byte{})
	f.Add(true, []byte{0, 0, 0, 2, '{'})
	cfg := config("there")
	addr := serve(f, cfg)
	f.Fuzz(func(t *testing.T, proven bool, data []byte) {
		if bytes.Contains(data, []byte(`"reach"`)) || len(data) > 1<<20 {
			t.Skip("it connects back for seconds")
		}
		if !proven {
			c := dial(t, addr)
			c.Write(data)
			c.(*net.TCPConn).CloseWrite()
			ends(t, c)
			return
		}
		c := friend(t, addr)
		c.Write(data)
		c.CloseWrite()
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
		addr := hostile(t, func(c *peertls.Conn) {
			c.Write(data)
			c.CloseWrite()
			io.Copy(io.Discard, c)
		})
		cfg := config("here")
		cfg.Tries, cfg.Echoes, cfg.Gap, cfg.SizeTries, cfg.SizePatience = 1, 10, time.Millisecond, 1, 10*time.Millisecond
		cfg.WarmUp, cfg.Timed, cfg.Budget = time.Millisecond, 20*time.Millisecond, 3*time.Second
		facts := pair(t, cfg, addr)
		text := pretty(netprobe.Judge([]netprobe.Facts{facts}, netprobe.Limits{})) +
			pretty(netprobe.JudgeNodes(netprobe.Nodes([]netprobe.Facts{facts})))
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

// FuzzMessages: no bytes are taken for a request that no client of ours makes, or for a node with a name that is no
// line of text.
func FuzzMessages(f *testing.F) {
	f.Add(message(map[string]any{"op": "about"}))
	f.Add(message(map[string]any{
		"op": "reach", "port": 1, "tries": 1, "patience_ns": 1, "limit_ns": 1,
		"from": "127.0.0.1:1/aaaaaaaaaaaaaaaa",
	}))
	f.Add(message(map[string]any{"op": "run", "direction": "out", "streams": -1, "timed_ns": -5}))
	f.Add(message(map[string]any{"node": map[string]any{"Name": "a\x1b[2J", "GPUs": []any{map[string]any{"Index": -1}}}}))
	known := []string{"", "about", "reach", "echo", "sizes", "run", "join", "result"}
	f.Fuzz(func(t *testing.T, data []byte) {
		if op := netprobe.ReadRequest(data); !slices.Contains(known, op) {
			t.Errorf("%q was taken", op)
		}
		if n := netprobe.ReadNode(data); n != nil && (len(n.Name) > 300 || strings.ContainsAny(n.Name+n.Route+n.NCCL.Why, "\x1b\n\r")) {
			t.Errorf("%q was taken", n.Name)
		}
	})
}

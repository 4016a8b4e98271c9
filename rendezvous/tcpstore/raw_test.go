package tcpstore_test

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"muster/rendezvous/tcpstore"
)

func TestMain(m *testing.M) {
	if n := os.Getenv("TCPSTORE_TEST_DESCRIPTORS"); n != "" {
		if err := serveWithDescriptors(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const patience = 2 * time.Minute // bounds a hang, measures nothing

// Opcodes of PyTorch 2.2 and later.
const (
	opSet        = "\x01"
	opCompareSet = "\x02"
	opGet        = "\x03"
	opAdd        = "\x04"
	opCheck      = "\x05"
	opWait       = "\x06"
	opNumKeys    = "\x07"
	opDelete     = "\x08"
	opAppend     = "\x09"
	opMultiGet   = "\x0a"
	opMultiSet   = "\x0b"
	opCancelWait = "\x0c"
	opPing       = "\x0d"
	opQueuePush  = "\x0e"
	opQueuePop   = "\x0f"
	opQueueLen   = "\x10"
	opListKeys   = "\x11"
	opBarrier    = "\x12"

	hello = "\x00\xce\xf7\x85\x3c"
)

// u64 and str are the pieces that requests are made of.
func u64(n int64) string  { return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
func str(s string) string { return u64(int64(len(s))) + s }
func keys(k ...string) string {
	s := u64(int64(len(k)))
	for _, k := range k {
		s += str(k)
	}
	return s
}

func listen(t testing.TB, cfg tcpstore.ServerConfig) *tcpstore.Server {
	t.Helper()
	if cfg.Loops == 0 {
		cfg.Loops = 3 // more than the connections of most tests, so that they talk across loops
	}
	cfg.Log = zerolog.New(io.Discard).Level(zerolog.DebugLevel)
	s, err := tcpstore.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// raw is a client that sends what it is told.
type raw struct {
	t testing.TB
	net.Conn
}

// dialRaw connects without handshake.
func dialRaw(t testing.TB, s *tcpstore.Server) raw {
	t.Helper()
	c, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return raw{t, c}
}

// dialHello connects and sends the handshake of PyTorch 2.2 and later.
func dialHello(t testing.TB, s *tcpstore.Server) raw {
	t.Helper()
	c := dialRaw(t, s)
	c.send(hello)
	return c
}

func (c raw) send(parts ...string) {
	c.t.Helper()
	if _, err := c.Write([]byte(strings.Join(parts, ""))); err != nil {
		c.t.Fatal(err)
	}
}

func (c raw) expect(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if string(got[:n]) != want {
		c.t.Fatalf("answer %x (%v), want %x", clip(got[:n]), err, clip([]byte(want)))
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 80)] }

func (c raw) expectClosed() {
	c.t.Helper()
	got, err := io.ReadAll(c)
	if len(got) > 0 {
		c.t.Fatalf("answer %x, want a closed connection", clip(got))
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("the connection stays open: %v", err)
	}
}

// ask sends a request and expects the answer.
func (c raw) ask(request, answer string) {
	c.t.Helper()
	c.send(request)
	c.expect(answer)
}

// alive shows that the connection is in step and the server answers.
func (c raw) alive() {
	c.t.Helper()
	c.ask(opPing+"ping", "ping")
}

// transcript is a file of testdata/wire: lines of hexadecimal bytes, '>' from the client, '<' from the server.
type transcript []struct {
	fromClient bool
	data       string
}

func readTranscript(t testing.TB, name string) (ts transcript) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "testdata", "wire", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for line := 1; sc.Scan(); line++ {
		text := sc.Text()
		if text == "" || text[0] == '#' {
			continue
		}
		b, err := hex.DecodeString(strings.TrimSpace(text[1:]))
		if err != nil || (text[0] != '>' && text[0] != '<') {
			t.Fatalf("%s:%d: malformed: %v", name, line, err)
		}
		ts = append(ts, struct {
			fromClient bool
			data       string
		}{text[0] == '>', string(b)})
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return ts
}

var transcripts = []struct {
	file string
	old  tcpstore.Generation
}{
	{"torch214.hex", tcpstore.G0},
	{"torch113.hex", tcpstore.G0},
	{"torch21.hex", tcpstore.G1},
}

func TestTranscripts(t *testing.T) {
	for _, tc := range transcripts {
		ts := readTranscript(t, tc.file)
		t.Run(tc.file+"/as captured", func(t *testing.T) {
			c := dialRaw(t, listen(t, tcpstore.ServerConfig{OldClients: tc.old}))
			for _, s := range ts {
				if s.fromClient {
					c.send(s.data)
				} else {
					c.expect(s.data)
				}
			}
		})
		t.Run(tc.file+"/byte by byte", func(t *testing.T) {
			c := dialRaw(t, listen(t, tcpstore.ServerConfig{OldClients: tc.old}))
			for _, s := range ts {
				if !s.fromClient {
					c.expect(s.data)
					continue
				}
				for i := range len(s.data) {
					c.send(s.data[i : i+1])
				}
			}
		})
		t.Run(tc.file+"/in one piece", func(t *testing.T) {
			c := dialRaw(t, listen(t, tcpstore.ServerConfig{OldClients: tc.old}))
			var requests, answers strings.Builder
			for _, s := range ts {
				if s.fromClient {
					requests.WriteString(s.data)
				} else {
					answers.WriteString(s.data)
				}
			}
			c.send(requests.String())
			c.expect(answers.String())
		})
	}
}

// TestOldClientsTellThemselves uses the numbers of PyTorch 2.1 on a server that takes old clients for older ones.
func TestOldClientsTellThemselves(t *testing.T) {
	const set, check, watchOrDelete, appendOrDelete, multiGet, cancelWait = "\x00", "\x04", "\x07", "\x08", "\x09", "\x0b"
	s := listen(t, tcpstore.ServerConfig{})
	c := dialRaw(t, s)
	c.send(set + str("k") + str("v"))
	c.ask(watchOrDelete+str("k"), u64(1))
	c.send(appendOrDelete + str("k") + str("a") + appendOrDelete + str("k") + str("b"))
	c.ask(multiGet+keys("k"), str("ab"))
	c.ask(cancelWait, "\x01")
	other := dialRaw(t, s)
	other.ask(check+keys("k")+watchOrDelete+str("k"), "\x00"+u64(1)) // a connection does not know of another
	// PyTorch 2.0 and older: the watching connection watches, and the other deletes.
	c.send(set + str("k") + str("v"))
	c = dialRaw(t, s)
	c.ask(watchOrDelete+str("k")+watchOrDelete+str("l"), "\x03\x03")
	c = dialRaw(t, s)
	c.ask(check+keys("k")+appendOrDelete+str("k"), "\x00"+u64(1))
	c.ask(watchOrDelete+str("k"), "\x03")
}

func TestGarbageIsClosedAndOthersUnharmed(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	other := dialHello(t, s)
	huge := u64(-1)
	for _, tc := range []struct{ name, send string }{
		{"http", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"tls", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"wrong magic", "\x00\xce\xf7\x85\x3d"},
		{"handshake twice", hello + hello},
		{"opcode above the last", hello + "\x13"},
		{"opcode 255", hello + "\xff"},
		{"opcode above the last of PyTorch 2.0", "\x09"},
		{"huge key", hello + opSet + huge},
		{"huge value", hello + opSet + str("k") + huge},
		{"huge count", hello + opWait + huge},
		{"huge key of an old client", "\x00\x01\x00\x00\x00\x01\x00\x00\x00"},
		{"add to a word", hello + opSet + str("w") + str("word") + opAdd + str("w") + u64(1)},
		{"add to nothing", hello + opSet + str("w") + str("") + opAdd + str("w") + u64(1)},
		{"add beyond 64 bits", hello + opSet + str("w") + str("9223372036854775808") + opAdd + str("w") + u64(1)},
		{"barrier on a word", hello + opSet + str("w") + str("word") + opBarrier + str("w") + u64(1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dialRaw(t, s)
			c.send(tc.send)
			c.expectClosed()
			other.alive()
		})
	}
	other.ask(opGet+str("w"), str("word"))
}

func TestPortInUse(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{})
	_, err := tcpstore.Listen(tcpstore.ServerConfig{Port: s.Port()})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("error %v, want EADDRINUSE", err)
	}
	if want := fmt.Sprint(s.Port()); !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not name port %s", err, want)
	}
}

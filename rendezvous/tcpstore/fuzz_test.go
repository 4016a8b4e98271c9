package tcpstore_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/rendezvous/tcpstore"
)

// FuzzServer sends bytes to a server, in one piece and cut in two, and wants the same answers, an end, and a server
// that serves the next client.
func FuzzServer(f *testing.F) {
	for _, tc := range transcripts {
		var requests strings.Builder
		for _, s := range readTranscript(f, tc.file) {
			if s.fromClient {
				requests.WriteString(s.data)
			}
		}
		f.Add([]byte(requests.String()), uint16(7))
	}
	f.Add([]byte(hello+opWait+u64(3)+str("a")), uint16(3))
	f.Add([]byte(hello+opSet+str("a")+u64(1<<20)+strings.Repeat("x", 40_000)), uint16(30_000))
	s := listen(f, tcpstore.ServerConfig{Limits: tcpstore.Limits{ReplyAtOnce: 1 << 20}, Loops: 2})
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		at := min(int(cut), len(data))
		whole, ok := exchange(t, s, data)
		s.Reset()
		parts, ok2 := exchange(t, s, data[:at], data[at:])
		if ok && ok2 && whole != parts && !strings.Contains(string(data), opListKeys) { // keys come in any order
			t.Errorf("answers differ: %x in one piece, %x in two", clip([]byte(whole)), clip([]byte(parts)))
		}
		s.Reset()
		c := dialHello(t, s)
		c.alive()
		c.Close()
	})
}

// exchange sends parts, says that nothing follows, and returns the answers. It is not ok when the server closes with
// bytes unread, for the reset that follows may take answers with it.
func exchange(t *testing.T, s *tcpstore.Server, parts ...[]byte) (answers string, ok bool) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	for _, p := range parts {
		if _, err := conn.Write(p); err != nil {
			break // closed for what came before
		}
	}
	conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(answer), err == nil
}

// FuzzClient answers a client with bytes.
func FuzzClient(f *testing.F) {
	f.Add([]byte("\x00" + str("value")))
	f.Add([]byte("\x00" + u64(-1)))
	f.Add([]byte("\x00" + u64(1<<30) + "x"))
	f.Add([]byte("\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		served := make(chan struct{})
		go func() {
			defer close(served)
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			var preamble [10]byte
			if _, err := io.ReadFull(c, preamble[:]); err != nil {
				return
			}
			c.Write(preamble[6:])
			c.Write(data)
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
		}()
		c := dial(t, ln.Addr().String())
		value, err := c.Get(timed(t), "k")
		if err == nil && "\x00"+str(string(value)) != string(data[:min(len(data), 9+len(value))]) {
			t.Errorf("%x gives %x", clip(data), clip(value))
		}
		c.Close()
		<-served
	})
}

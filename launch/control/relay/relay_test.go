package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/peertls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a stream.
func pair(t *testing.T) (here, there *Stream) {
	t.Helper()
	a, b := net.Pipe()
	here, there = NewStream(a, a), NewStream(b, b)
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

// TestFrames sends what fits into a frame, and what does not.
func TestFrames(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	for _, size := range []int{0, 1, MostFrame, MostFrame + 1, 3*MostFrame + 7} {
		sent := bytes.Repeat([]byte("ab\n"), size/3+1)[:size]
		go func() { _ = here.Send(Stdout, sent) }()
		var got []byte
		frames := 0
		for frames == 0 || len(got) < size {
			k, part, err := there.Receive()
			if err != nil || k != Stdout {
				t.Fatalf("%d bytes: %v, %v", size, k, err)
			}
			got = append(got, part...)
			frames++
		}
		if !bytes.Equal(got, sent) || frames != max(1, (size+MostFrame-1)/MostFrame) {
			t.Errorf("%d bytes: %d in %d frames", size, len(got), frames)
		}
	}
}

// TestNoFrames has an end that sends what no stream of ours does.
func TestNoFrames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"too long": {binary.BigEndian.AppendUint32([]byte{byte(Stdout)}, MostFrame+1), ErrFrame},
		"HTTP":     {[]byte("HTTP/1.1 400 Bad Request\r\n"), ErrFrame},
		"half":     {[]byte{byte(Stdout), 0, 0, 0, 9, 'x'}, io.ErrUnexpectedEOF},
		"nothing":  {nil, io.EOF},
	} {
		a, b := net.Pipe()
		go func() {
			_, _ = b.Write(c.bytes)
			_ = b.Close()
		}()
		s := NewStream(a, a)
		if _, _, err := s.Receive(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		_ = s.Close()
	}
}

// TestHush ends a waiting for frames, and what is sent still arrives.
func TestHush(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	ended := make(chan error, 1)
	go func() {
		_, _, err := here.Receive()
		ended <- err
	}()
	here.Hush()
	if err := <-ended; err == nil {
		t.Error("it has received something")
	}
	if _, _, err := here.Receive(); !errors.Is(err, errHushed) {
		t.Errorf("%v", err)
	}
	go func() { _ = here.Send(End, []byte("{}")) }()
	if k, text, err := there.Receive(); k != End || string(text) != "{}" || err != nil {
		t.Errorf("%v %q %v", k, text, err)
	}
}

// TestPeers has agents with and without the job's token connect.
func TestPeers(t *testing.T) {
	t.Parallel()
	d := Domain{Token: []byte("a token of this test"), RunID: "it"}
	l, err := Listen(t.Context(), "127.0.0.1", d, func(c net.Conn) {
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := Dial(t.Context(), d, l.Identity())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	got := make([]byte, 5)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%q: %v", got, err)
	}
	_ = conn.Close()
	for name, c := range map[string]struct {
		d    Domain
		to   peertls.Identity
		want string
	}{
		"another token": {Domain{[]byte("the token of others"), "it"}, l.Identity(), peertls.ErrToken.Error()},
		"another job":   {Domain{d.Token, "other"}, l.Identity(), peertls.ErrToken.Error()},
		"no identity":   {d, "127.0.0.1:1", "does not name an agent's server"},
		"nobody there":  {d, peertls.NewIdentity("127.0.0.1:1"), "refused"},
	} {
		if conn, err := Dial(t.Context(), c.d, c.to); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, conn, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ended, d, l.Identity()); err == nil {
		t.Error("somebody was called who has gone")
	}
}

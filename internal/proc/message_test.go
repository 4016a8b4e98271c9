package proc

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// openChannel returns our end of a channel and the bare other one.
func openChannel(t *testing.T) (channel, *os.File) {
	t.Helper()
	c, theirs, err := newChannel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.close()
		_ = theirs.Close()
	})
	return c, theirs
}

func TestChannelRoundTrip(t *testing.T) {
	c, theirs := openChannel(t)
	deadline := time.Now().Add(time.Minute)
	big := strings.Repeat("x", 700_000)
	want := []string{"", "key", "va\x00lue\xff", big}
	sent := make(chan error, 1)
	go func() { sent <- c.send(deadline, want) }()
	var size [4]byte
	if _, err := io.ReadFull(theirs, size[:]); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.LittleEndian.Uint32(size[:]))
	if _, err := io.ReadFull(theirs, body); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { _, err := theirs.Write(append(size[:], body...)); sent <- err }()
	got, err := c.receive(deadline)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d strings came back (%v), want %d", len(got), err, len(want))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// TestChannelHostile reads what no template sends.
func TestChannelHostile(t *testing.T) {
	number := func(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }
	for name, c := range map[string]struct{ bytes, want string }{
		"too long":          {number(messageLimit + 1), "message of"},
		"huge":              {number(1<<32 - 1), "message of"},
		"string too long":   {number(8) + number(5) + "four", "malformed"},
		"string overflows":  {number(8) + number(1<<32-1) + "four", "malformed"},
		"half a length":     {number(2) + "ab", "malformed"},
		"ends in the head":  {"abc", "EOF"},
		"ends in the body":  {number(100) + "abc", "EOF"},
		"ends before it":    {"", "EOF"},
		"an empty message":  {number(0), ""},
		"one empty string":  {number(4) + number(0), ""},
		"behind is another": {number(4) + number(0) + "rest", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := openChannel(t)
			if _, err := theirs.WriteString(c.bytes); err != nil {
				t.Fatal(err)
			}
			if err := theirs.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := ours.receive(time.Now().Add(time.Minute))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestChannelDeadline(t *testing.T) {
	c, _ := openChannel(t)
	if _, err := c.receive(time.Now().Add(10 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent template: %v", err)
	}
	if err := c.send(time.Now().Add(10*time.Millisecond), []string{strings.Repeat("x", 1<<24)}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a template that does not read: %v", err)
	}
	if _, err := c.answer(time.Now().Add(-time.Second), "pid", 2); err == nil || err.Error() != "no answer in time" {
		t.Errorf("an answer that is late: %v", err)
	}
}

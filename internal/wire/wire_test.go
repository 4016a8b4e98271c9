package wire_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"muster/internal/wire"
)

type note struct {
	Text string `json:"text"`
	Data []byte `json:"data,omitempty"`
}

// TestMessages: what is sent one after the other comes so, however the bytes are cut, and then the end.
func TestMessages(t *testing.T) {
	sent := []note{{Text: "a"}, {Text: "ü", Data: bytes.Repeat([]byte{7}, 3<<20)}, {}}
	var stream bytes.Buffer
	for _, n := range sent {
		if err := wire.Write(&stream, n); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(stream.Bytes()), "in halves": iotest.HalfReader(bytes.NewReader(stream.Bytes())),
	} {
		for i, want := range sent {
			var got note
			if err := wire.Read(r, 8<<20, &got); err != nil || got.Text != want.Text || !bytes.Equal(got.Data, want.Data) {
				t.Fatalf("%s: message %d is %.20q with %d bytes, %v", name, i, got.Text, len(got.Data), err)
			}
		}
		if err := wire.Read(r, 8<<20, new(note)); err != io.EOF { //nolint:errorlint // itself
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

// TestBadMessages: what is too long, cut or no JSON is refused, and costs no memory that did not come.
func TestBadMessages(t *testing.T) {
	for name, c := range map[string]struct{ stream, want string }{
		"too long":  {"\x00\x00\x10\x01" + strings.Repeat(" ", 4097), "message of 4097 bytes exceeds the limit of 4096"},
		"cut":       {"\x00\x00\x00\x04{}", "truncated message of 4 bytes: unexpected EOF"},
		"cut head":  {"\x00\x00", "unexpected EOF"},
		"nothing":   {"\x00\x00\x00\x00", "cannot read a message: "},
		"no JSON":   {"\x00\x00\x00\x02{{", "cannot read a message: "},
		"two texts": {"\x00\x00\x00\x05{} {}", "cannot read a message: "},
	} {
		if err := wire.Read(strings.NewReader(c.stream), 4096, new(note)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := wire.Read(strings.NewReader("\xff\xff\xff\xff{"), 1<<32-1, new(note))
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || taken > 64<<20 {
		t.Errorf("4 GiB that do not come: %v, and %d bytes of memory", err, taken)
	}
}

// FuzzRead: whatever comes, it is a message or an error.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Fuzz(func(_ *testing.T, stream []byte) {
		var v any
		_ = wire.Read(bytes.NewReader(stream), 1<<16, &v)
	})
}

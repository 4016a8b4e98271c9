package devicecheck

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
)

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	long := `{"event": "` + strings.Repeat("x", maxLine-14) + "\"}\n" // exactly maxLine bytes
	for text, want := range map[string]error{
		`{"id": 3, "event": "step", "step": "a", "more": [1]}` + "\n": nil,
		"":               io.EOF,
		`{"id": 3`:       io.ErrUnexpectedEOF,
		"\n":             errGarbled,
		"[]\n":           errGarbled,
		`{"id": "3"}`:    io.ErrUnexpectedEOF,
		"{\"id\":1.5}\n": errGarbled,
		long:             nil,
		"x" + long:       errGarbled,
	} {
		if _, err := readAnswer(bufio.NewReader(strings.NewReader(text))); !errors.Is(err, want) {
			t.Errorf("%.40q: %v, want %v", text, err, want)
		}
	}
}

// Whatever a process says, reading it ends, and what is shown of it is harmless.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("{\"id\": 1, \"event\": \"link\", \"pair\": [0, 1], \"ways\": [{\"mbps\": 1e9, \"peer\": null}, {}]}\n\x1b[31m\xff\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bufio.NewReader(bytes.NewReader(text))
		for range len(text) + 1 {
			a, err := readAnswer(r)
			switch {
			case errors.Is(err, errGarbled):
				if strings.ContainsFunc(err.Error(), unicode.IsControl) {
					t.Errorf("%q", err)
				}
			case err != nil:
				return
			case strings.ContainsFunc(said(a.Error), func(r rune) bool { return unicode.IsControl(r) && r != '\t' }):
				t.Errorf("%q", said(a.Error))
			}
		}
		t.Errorf("%d bytes were read for ever", len(text))
	})
}

package logtext

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestProgressInALog: without a terminal a step that takes long is a line of the log, and again, ever more rarely.
func TestProgressInALog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewProgress(func(string) bool { return false }, zerolog.New(&out), "check of the nodes")
	p.stop()
	p.Next("waiting for the other nodes", 0)
	p.Next("testing a link", time.Minute)
	p.Detail("not told by itself")
	for range 24 { // of five seconds each
		p.told = p.told.Add(-5 * time.Second)
		p.tell()
	}
	got := out.String()
	for _, want := range []string{"testing a link", `"step":"not told by itself"`, `"timeout_ms":60000`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n != 4 || strings.ContainsAny(got, "\r\x1b") {
		t.Errorf("%d lines: %q", n, got)
	}
}

package control

import (
	"strings"
	"testing"
	"time"
)

// TestStopping: what follows of a stop depends on whether there is grace, and whether it was asked for before.
func TestStopping(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"workers have 30s":             Stopping(false, false, 30*time.Second),
		"already: its workers have 5s": Stopping(false, true, 5*time.Second),
		"without grace":                Stopping(true, true, time.Second),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

// TestRequestPaths: each request has a path of its own, and is called in words of its own.
func TestRequestPaths(t *testing.T) {
	t.Parallel()
	words := map[string]bool{}
	for what, path := range requestPaths {
		if got, ok := requestAt(path); !ok || got != what {
			t.Errorf("%s: %s is %s", what, path, got)
		}
		r := Request{What: what}
		words[r.String()] = true
		if strings.Contains(r.Verb(), "error") {
			t.Errorf("%s has no verb", what)
		}
	}
	if _, ok := requestAt(pathStatus); ok || len(words) != len(requestPaths) {
		t.Errorf("%v", words)
	}
}

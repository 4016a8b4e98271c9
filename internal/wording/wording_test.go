package wording_test

import (
	"strings"
	"testing"

	"muster/internal/wording"
)

func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 nodes", 1: "1 node", 2: "2 nodes"} {
		if got := wording.Plural(n, "node"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestNode: a name that begins with node has no second one in front.
func TestNode(t *testing.T) {
	for name, want := range map[string]string{"gpu-7": "node gpu-7", "7": "node 7", "node-7": "node-7"} {
		if got := wording.Node(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestClip: a word of 64 bytes stays whole, and no character is cut in two.
func TestClip(t *testing.T) {
	whole := strings.Repeat("x", 64)
	for word, want := range map[string]string{
		"":                            "",
		whole:                         whole,
		whole + "y":                   whole + "…",
		strings.Repeat("x", 63) + "é": strings.Repeat("x", 63) + "…",
	} {
		if got := wording.Clip(word); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

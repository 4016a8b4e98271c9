// Package wording puts numbers and words from elsewhere into messages.
package wording

import (
	"fmt"
	"strings"
)

// Plural returns "1 thing" or "n things".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Node returns "node NAME", and a name that says by itself that it is one's as it is.
func Node(name string) string {
	if strings.HasPrefix(name, "node") {
		return name
	}
	return "node " + name
}

// Clip cuts a word to the length that a reader of a message can take in.
func Clip(s string) string {
	const longest = 64 // bytes
	if len(s) > longest {
		return strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}

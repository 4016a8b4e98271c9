package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What is shown of a text from the network, in characters.
const (
	mostName   = 40
	mostReason = 600 // the names of a dozen nodes, and what two of them said
)

// printable makes a text from the network one line fit for a terminal, and for XML: what is not printable is escaped as in
// Go, also what would change the direction of writing. launch has another one, which knows the colours of workers.
func printable(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		i += size
	}
	return b.String()
}

// name returns the printable name of a node, the middle left out where it is long: names of pods differ at their ends.
func name(text string) string { return shorten(text, mostName, mostName/2) }

// reason returns a printable reason, cut where it is long.
func reason(text string) string { return cut(text, mostReason) }

// cut returns the printable beginning of text.
func cut(text string, most int) string { return shorten(text, most, 0) }

// shorten returns at most most characters of a text made printable, the last tail of them from its end.
func shorten(text string, most, tail int) string {
	// A character takes up to four bytes. What is far longer than what is shown is not looked at.
	if far := 8 * most; len(text) > far {
		text = text[:far/2] + "…" + text[len(text)-far/2:]
	}
	runes := []rune(printable(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-tail-1]) + "…" + string(runes[len(runes)-tail:])
}

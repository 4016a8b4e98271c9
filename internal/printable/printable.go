// Package printable makes text from elsewhere — the network, a worker, a driver — fit to be shown. Output is the form
// for what workers print: it knows their colours and tabs.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns a text of several lines with each of them as Line has it, save for tabs, which stay.
func Text(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		parts := strings.Split(line, "\t")
		for j, part := range parts {
			parts[j] = Line(part, len(part))
		}
		lines[i] = strings.Join(parts, "\t")
	}
	return strings.Join(lines, "\n")
}

// Line returns text as one line fit for a terminal, and for XML: what is not printable is escaped as in Go, also what
// would change the direction of writing. Of a text longer than most bytes only the beginning is looked at, and "…"
// follows.
func Line(text string, most int) string {
	end := ""
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text, end = text[:most], "…"
	}
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
	return b.String() + end
}

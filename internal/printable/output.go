package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxOutput is how much of one line of a worker is shown, in bytes.
const MaxOutput = 1000

// colourLen returns the length of the sequence at the beginning of text that only colours what follows, 0 if it is
// none.
func colourLen(text string) int {
	rest, ok := strings.CutPrefix(text, "\x1b[")
	if !ok {
		return 0
	}
	rest = strings.TrimLeft(rest, "0123456789;")
	if !strings.HasPrefix(rest, "m") {
		return 0
	}
	return len(text) - len(rest) + 1
}

// Output returns a worker's text fit for a terminal: colours are dropped, other control characters and bytes that
// are no UTF-8 are escaped as in Go, and what is beyond MaxOutput bytes is cut.
func Output(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		if b.Len() >= MaxOutput {
			fmt.Fprintf(&b, " … (%d bytes)", len(text))
			break
		}
		if n := colourLen(text[i:]); n > 0 {
			i += n
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r) || r == '\t':
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		i += size
	}
	return b.String()
}

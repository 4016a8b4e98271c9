package printable_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"muster/internal/printable"
)

func TestOutput(t *testing.T) {
	long := strings.Repeat("é", printable.MaxOutput)
	for text, want := range map[string]string{
		"plain":                "plain",
		"tab\tstays":           "tab\tstays",
		"\x1b[1;31mred\x1b[0m": "red",
		"\x1b]0;title\a":       `\x1b]0;title\a`,
		strings.Repeat("\x1b[31m", printable.MaxOutput) + "é": "é",
		"\x1b[31":                `\x1b[31`,
		"\x1b[2J":                `\x1b[2J`,
		"a\rb":                   `a\rb`,
		"\xff\xfe":               `\xff\xfe`,
		"bidi \u202e":            `bidi \u202e`,
		"no nul \x00":            `no nul \x00`,
		"GLHF! \U0001f3d6\ufe0f": "GLHF! \U0001f3d6\ufe0f",
		"日本":                     "日本",
		long: strings.Repeat("é", printable.MaxOutput/2) +
			fmt.Sprintf(" … (%d bytes)", 2*printable.MaxOutput),
		strings.Repeat("x", printable.MaxOutput): strings.Repeat("x", printable.MaxOutput),
		strings.Repeat("x", 10*printable.MaxOutput): strings.Repeat("x", printable.MaxOutput) +
			fmt.Sprintf(" … (%d bytes)", 10*printable.MaxOutput),
	} {
		if got := printable.Output(text); got != want {
			t.Errorf("%.40q became %q, want %q", text, got, want)
		}
	}
	if !utf8.ValidString(printable.Output(long)) {
		t.Error("a character was cut")
	}
}

package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"muster/internal/printable"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"GPU 3 (0000:1b:00.0)":  "GPU 3 (0000:1b:00.0)",
		"größe 显卡":              "größe 显卡",
		"a\tb\r\nc":             `a\tb\r\nc`,
		"\x1b[2J\x07":           `\x1b[2J\a`,
		"\u202egnp.exe":         `\u202egnp.exe`,
		"\xff\xfe":              `\xff\xfe`,
		strings.Repeat("x", 21): strings.Repeat("x", 20) + "…",
		strings.Repeat("ä", 11): strings.Repeat("ä", 10) + "…",
		strings.Repeat("显", 7):  strings.Repeat("显", 6) + "…", // 18 bytes: a character is not cut
	} {
		if got := printable.Line(text, 20); got != want {
			t.Errorf("Line(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a\n\tb c\n": "a\n\tb c\n", "\x1b[2Ja\r\n\x9bb\u009b": `\x1b[2Ja\r` + "\n" + `\x9bb\u009b`,
		strings.Repeat("x", 5000): strings.Repeat("x", 5000),
	} {
		if got := printable.Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\x1b[0m\xff\u2028", 5)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, 0)
		got := printable.Line(text, most)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("Line(%q, %d) = %q", text, most, got)
		}
		if again := printable.Line(got, len(got)); again != got {
			t.Errorf("%q becomes %q", got, again)
		}
	})
}

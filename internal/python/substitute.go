package python

import (
	"strings"
)

// Substitute replaces ${name} and $name as safe_substitute of Python's string.Template does, which torchrun uses:
// unknown names and a lone $ stay as they are, $$ is a $.
func Substitute(text string, values map[string]string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if rest, ok := strings.CutPrefix(text, "$"); ok {
			b.WriteByte('$')
			text = rest
			continue
		}
		name, length := templateName(text)
		value, known := values[name]
		if !known {
			b.WriteByte('$')
			continue
		}
		b.WriteString(value)
		text = text[length:]
	}
}

// templateName returns the name at the start of text, which follows a $, and how many bytes of text it takes with its
// braces; "" and 0 where there is none.
func templateName(text string) (string, int) {
	inner, braced := strings.CutPrefix(text, "{")
	end := 0
	for end < len(inner) && isNameByte(inner[end], end > 0) {
		end++
	}
	switch {
	case end == 0:
		return "", 0
	case !braced:
		return inner[:end], end
	case end < len(inner) && inner[end] == '}':
		return inner[:end], end + 2
	}
	return "", 0
}

func isNameByte(c byte, digits bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || digits && '0' <= c && c <= '9'
}

package report

import "muster/internal/printable"

// What is shown of a text from the network, in characters.
const (
	mostName   = 40
	mostReason = 600 // the names of a dozen nodes, and what two of them said
)

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
	runes := []rune(printable.Line(text, len(text)))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-tail-1]) + "…" + string(runes[len(runes)-tail:])
}

package evidence

import (
	"fmt"
	"html"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"muster/internal/printable"
)

// Sizes of the picture, in pixels.
const (
	svgWidth   = 1600
	rowHeight  = 18
	letter     = 6.6 // of the font, on average
	svgTop     = 44
	leastWidth = 2
)

// WriteSVG draws merged stacks as a flame graph from above: a frame is as wide as the share of ranks that are in it,
// and has its whole name when the pointer is on it. Nothing in it runs or is loaded from elsewhere.
func WriteSVG(w io.Writer, title string, groups []Group) error {
	root := Root(groups)
	height := svgTop + rowHeight*(depth(root)+1)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="monospace" font-size="11">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="10" y="20" font-size="15">%s</text>
<text x="10" y="36" fill="#555555">width: share of the ranks; red: ranks that are not with the most; `+
		`the pointer shows function@source@ranks here|ranks elsewhere</text>
`, svgWidth, height, svgWidth, height, escape(title))
	draw(&b, root, root, 0, svgWidth, svgTop)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func depth(b *Branch) int {
	most := 0
	for _, c := range b.Children {
		most = max(most, depth(c)+1)
	}
	return most
}

// weight is how wide a branch is beside the others: by its ranks, or by those of what is below it where that is more.
func weight(b *Branch) float64 {
	sum := 0.0
	for _, c := range b.Children {
		sum += weight(c)
	}
	return max(sum, float64(len(b.Ranks)))
}

func draw(b *strings.Builder, root, at *Branch, x, width float64, y int) {
	if width < leastWidth {
		return
	}
	name, label := at.Name, at.Name
	if at != root {
		label = at.label(root.Ranks)
		name = label
		if function, source, is := strings.Cut(at.Name, "@"); is { // what tells frames apart is seen in a narrow one, too
			name = function + " " + path.Base(source) + " [" + Fold(at.Ranks) + "]"
		} else {
			name += " [" + Fold(at.Ranks) + "]"
		}
	} else {
		name += " ranks: " + Fold(at.Ranks)
	}
	fmt.Fprintf(b, `<g><title>%s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#ffffff" rx="1"/>`,
		escape(label), x, y, width, rowHeight, colour(root, at))
	if text := printable.Output(name); width > 4*letter {
		room := int((width - 6) / letter)
		if utf8.RuneCountInString(text) > room {
			text = string([]rune(text)[:max(room-1, 1)]) + "…"
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, x+3, y+rowHeight-5, html.EscapeString(text))
	}
	b.WriteString("</g>\n")
	total := weight(at)
	for _, c := range at.Children {
		share := width * weight(c) / total
		draw(b, root, c, x, share, y+rowHeight)
		x += share
	}
}

func escape(text string) string { return html.EscapeString(printable.Output(text)) }

// colour says what a frame is of, and marks those of few ranks.
func colour(root, b *Branch) string {
	switch odd := 2*len(b.Ranks) < len(root.Ranks); {
	case odd:
		return "#f2857a"
	case strings.HasSuffix(b.Name, "@kernel"):
		return "#c3a6e0"
	case strings.Contains(b.Name, "/torch/"):
		return "#9fd89a"
	case strings.Contains(b.Name, "@"):
		return "#8fd3e0"
	default:
		return "#d9d9d9"
	}
}

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
	svgWidth   = 1600  // the least
	svgWidest  = 12000 // the most
	rowHeight  = 18
	letter     = 6.7 // of the font
	titleRow   = 20
	titleWidth = 172 // letters of the title in a line
	titleLines = 6   // the most of these
	leastWidth = 2   // of a frame that is drawn
	// A frame in which all ranks are is stacksWidth wide before the picture is stretched, and one of few ranks is wide
	// enough to tell which it is: among a thousand ranks the odd one is what is looked for. One of Python is wide enough
	// for its name, too, up to nameWidth: the line is at the name's end.
	stacksWidth = 240
	oddWidth    = 130
	nameWidth   = 320
	// mostBeside is how many frames are drawn below one.
	mostBeside = 100
)

const legend = "width: share of the ranks, and as much as a name needs; red: less than half of the ranks, green: PyTorch, " +
	"violet: the kernel; the pointer shows function@source@ranks here|ranks elsewhere"

// box is a frame in the picture.
type box struct {
	*Branch
	width float64
	below []*box
	more  int // frames below it that are not drawn
	// beside is the width of what is beside each other below it: less than its own where ranks end in it.
	beside float64
}

// WriteSVG draws merged stacks as a flame graph from above: a frame is as wide as the share of ranks that are in it,
// but for those of few ranks, and has its whole name when the pointer is on it. Nothing in it runs or is loaded from
// elsewhere.
func WriteSVG(w io.Writer, title string, groups []Group) error {
	root := rootOf(groups)
	all := lay(root, len(root.Ranks))
	width := min(max(all.width, svgWidth), svgWidest)
	lines := wrap(printable.Output(title), titleWidth)
	top := titleRow*(len(lines)+1) + 8
	height := top + rowHeight*(depth(root)+1)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" `+
		`font-family="monospace" font-size="11">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n", width, height, width, height)
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="10" y="%d" font-size="15">%s</text>`+"\n", titleRow*(i+1), html.EscapeString(line))
	}
	fmt.Fprintf(&b, `<text x="10" y="%d" fill="#555555">%s</text>`+"\n", titleRow*(len(lines)+1)-4, legend)
	draw(&b, root, all, 0, width, top)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap is a text in lines of at most so many letters, broken at spaces; what does not fit into titleLines is cut off.
func wrap(text string, most int) []string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if n := len(lines) - 1; n >= 0 && utf8.RuneCountInString(lines[n])+1+utf8.RuneCountInString(word) <= most {
			lines[n] += " " + word
		} else if n+1 == titleLines {
			lines[n] = cut(lines[n]+" …", most)
			return lines
		} else {
			lines = append(lines, cut(word, most))
		}
	}
	return lines
}

// cut is a text of at most so many letters.
func cut(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:max(most-1, 1)]) + "…"
}

func depth(b *Branch) int {
	most := 0
	for _, c := range b.Children {
		most = max(most, depth(c)+1)
	}
	return most
}

// lay finds out how wide a frame is, by its ranks of all, or by what is below it where that is wider.
func lay(b *Branch, all int) *box {
	x := &box{Branch: b, width: max(stacksWidth*float64(len(b.Ranks))/float64(max(all, 1)), oddWidth)}
	if _, source, is := strings.Cut(b.Name, "@"); is && source != "kernel" {
		x.width = max(x.width, min(letter*float64(utf8.RuneCountInString(b.shown())+1)+6, nameWidth))
	}
	sum, ranks := 0.0, map[int]bool{}
	for i, c := range b.Children {
		if i == mostBeside {
			x.more = len(b.Children) - i
			sum += oddWidth
			break
		}
		below := lay(c, all)
		sum += below.width
		x.below = append(x.below, below)
		for _, r := range c.Ranks {
			ranks[r] = true
		}
	}
	x.width = max(x.width, sum)
	if x.beside = x.width; sum > 0 && len(ranks) == len(b.Ranks) {
		x.beside = sum
	}
	return x
}

func draw(b *strings.Builder, root *Branch, at *box, x, width float64, y int) {
	if width < leastWidth {
		return
	}
	name, label := "all ranks: "+Fold(at.Ranks), at.Name
	if at.Branch != root {
		label, name = at.label(root.Ranks), at.shown()
	}
	rectangle(b, label, name, colour(root, at.Branch), x, width, y)
	for _, c := range at.below {
		share := width * c.width / at.beside
		draw(b, root, c, x, share, y+rowHeight)
		x += share
	}
	if at.more > 0 {
		more := fmt.Sprintf("%d more", at.more)
		rectangle(b, more, more, colour(root, root), x, width*oddWidth/at.beside, y+rowHeight)
	}
}

// shown is what is written in a frame: what tells frames apart is seen in a narrow one, too.
func (b *Branch) shown() string {
	name := b.Name
	if function, source, is := strings.Cut(b.Name, "@"); is {
		if name = function; source != "kernel" {
			name += " " + path.Base(source)
		}
	}
	return name + " [" + Fold(b.Ranks) + "]"
}

// rectangle draws a frame, with as much of its name as there is room for.
func rectangle(b *strings.Builder, label, name, fill string, x, width float64, y int) {
	fmt.Fprintf(b, `<g><title>%s</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#ffffff" rx="1"/>`,
		escape(label), x, y, width, rowHeight, fill)
	if width > 4*letter {
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, x+3, y+rowHeight-5,
			html.EscapeString(cut(printable.Output(name), int((width-6)/letter))))
	}
	b.WriteString("</g>\n")
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

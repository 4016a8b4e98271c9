package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"muster/netcheck"
)

const (
	mostInSVG   = 64 // nodes whose names can still be read beside their cells
	mostFigures = 12 // nodes up to which cells are large enough for figures
	mostLabel   = 28 // characters of a name beside its cells

	// In px. The font is the reader's: its characters are taken for a bit wider than those of the usual ones.
	charWidth   = 8.0
	headWidth   = 9.3
	leading     = 20.0
	margin      = 20.0
	leastWidth  = 640.0
	legendWidth = 300.0
	legendLines = len(shades) + 4
)

// picture is an SVG that is drawn, from top to bottom.
type picture struct {
	bytes.Buffer
	r *netcheck.Record
	m *matrix

	width float64
	y     float64 // of the last line
	// Of the matrix, where there is one.
	cell, left, top float64
	labels          [][]span // by rank
}

// span is a text of a class of style.
type span struct{ class, text string }

// SVG returns the links as a picture: a cell for each pair of nodes, with its figures as a tooltip, and what stands out
// below. It needs nothing from elsewhere, and is the same for the same record.
func SVG(r *netcheck.Record) []byte {
	p := &picture{r: r, m: newMatrix(r), width: leastWidth}
	drawn := len(p.m.links) > 0 && p.m.nodes <= mostInSVG
	if drawn {
		p.layOut()
	}
	p.heading()
	if drawn {
		p.matrix()
	}
	p.below(drawn)

	var b bytes.Buffer // the size is known only now
	w, h := px(p.width), px(p.y+margin)
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\" viewBox=\"0 0 %s %s\" role=\"img\">\n", w, h, w,
		h)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escape("network check: "+verdict(r)), style)
	fmt.Fprintf(&b, "<rect class=\"ground\" width=\"%s\" height=\"%s\"/>\n", w, h)
	b.Write(p.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (p *picture) put(format string, args ...any) {
	fmt.Fprintf(&p.Buffer, format+"\n", args...)
}

func px(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}

// text writes spans. anchor is start, middle or end; tip is the tooltip, if any.
func (p *picture) text(x, y float64, anchor, tip string, spans ...span) {
	inside := ""
	if tip != "" {
		inside = "<title>" + escape(tip) + "</title>"
	}
	for _, s := range spans {
		inside += fmt.Sprintf("<tspan class=\"%s\">%s</tspan>", s.class, escape(s.text))
	}
	p.put(`<text x="%s" y="%s" text-anchor="%s">%s</text>`, px(x), px(y), anchor, inside)
}

// line writes a line of text below what is there, over as many as it takes.
func (p *picture) line(class string, indent float64, text string) {
	char := charWidth
	if class == "head" {
		char = headWidth
	}
	for _, part := range wrap(text, int((p.width-2*margin-indent)/char)) {
		p.y += leading
		p.text(margin+indent, p.y, "start", "", span{class, part})
	}
}

// wrap breaks a text into lines of at most width characters, at a space where there is one.
func wrap(text string, width int) (lines []string) {
	runes := []rune(text)
	for len(runes) > width {
		at := width
		for i := width; i > width/2; i-- {
			if runes[i] == ' ' {
				at = i
				break
			}
		}
		lines = append(lines, string(runes[:at]))
		runes = []rune(strings.TrimLeft(string(runes[at:]), " "))
	}
	return append(lines, string(runes))
}

// layOut finds out how large the matrix is.
func (p *picture) layOut() {
	n := p.m.nodes
	switch {
	case n <= mostFigures:
		p.cell = 44
	case n <= mostInText:
		p.cell = 22
	default:
		p.cell = 14 // as high as a name
	}
	longest := 0
	for rank := range n {
		label := p.label(rank)
		length := 0
		for _, s := range label {
			length += utf8.RuneCountInString(s.text)
		}
		p.labels, longest = append(p.labels, label), max(longest, length)
	}
	p.left = margin + charWidth*float64(longest) + 8
	p.width = max(leastWidth, p.left+p.side()+margin, p.legendAt()+legendWidth)
}

// side is the length of a side of the matrix.
func (p *picture) side() float64 { return float64(p.m.nodes) * p.cell }

// legendAt is where the legend begins: in the upper right corner, as far to the left as there are no cells.
func (p *picture) legendAt() float64 {
	below := min(float64(legendLines)*leading, p.side())
	return p.left + below + 2*leading
}

// label is the name of a node, after what there is to say of it.
func (p *picture) label(rank int) []span {
	n := &p.r.Nodes[rank]
	var spans []span
	switch {
	case n.Status != netcheck.Pass:
		class := "fail"
		if n.Status == netcheck.Skip {
			class = "dim"
		}
		spans = append(spans, span{class, cut(string(n.Status), 10) + " "})
	case n.Fault != nil:
		spans = append(spans, span{"fail", "has to go "})
	}
	if slices.ContainsFunc(p.r.Stragglers, func(s netcheck.StragglerRecord) bool { return s.Node == rank }) {
		spans = append(spans, span{"warn", "slow "})
	}
	return append(spans, span{"", shorten(n.Node, mostLabel, mostLabel/2)}, span{"dim", " " + strconv.Itoa(rank)})
}

func (p *picture) heading() {
	p.y = margin - leading/4
	p.line("head", 0, "network check: "+verdict(p.r))
	p.line("dim", 0, circumstances(p.r))
	if p.r.Fake != "" {
		p.line("warn", 0, stamp(p.r))
	}
	if p.m.median > 0 {
		p.line("dim", 0, p.m.what())
	}
}

// matrix draws cells below the diagonal, names on the left, ranks below, and the legend where no cells are.
func (p *picture) matrix() {
	p.top = p.y + leading
	p.untested()
	for i := range p.m.links {
		p.link(&p.m.links[i])
	}
	every := 1 // rank that has room below its column
	if p.cell < 20 {
		every = 2
	}
	for rank := range p.labels {
		at := (float64(rank) + 0.5) * p.cell
		p.text(p.left-8, p.top+at+4.5, "end", p.about(rank), p.labels[rank]...)
		if rank < p.m.nodes-1 && rank%every == 0 {
			p.text(p.left+at, p.top+p.side()+16, "middle", "", span{"dim", strconv.Itoa(rank)})
		}
	}
	p.legend(p.legendAt(), p.top)
	p.y = p.top + max(p.side()+leading, float64(legendLines)*leading)
}

// about is what the tables say of a node.
func (p *picture) about(rank int) string {
	n := &p.r.Nodes[rank]
	text := fmt.Sprintf("%s (rank %d) %s: %s", name(n.Node), rank, cut(string(n.Status), mostName), why(n))
	if n.Local.Compute > 0 {
		text += fmt.Sprintf("; compute test %s ms", millis(n.Local.Compute))
	}
	return text
}

// untested draws the cells of all links as not tested; the others are drawn over them. One path for all keeps the file
// small: where nothing is wrong most links have not been tested.
func (p *picture) untested() {
	var cells, dots strings.Builder
	size, dot := px(p.cell-1), "2"
	for b := range p.m.nodes {
		for a := range b {
			if p.tested(a, b) {
				continue
			}
			x, y := p.at(a, b)
			fmt.Fprintf(&cells, "M%s %sh%sv%sh-%sz", px(x), px(y), size, size, size)
			fmt.Fprintf(&dots, "M%s %sh%sv%sh-%sz", px(x+p.cell/2-1.5), px(y+p.cell/2-1.5), dot, dot, dot)
		}
	}
	if cells.Len() > 0 {
		p.put(`<g><title>not tested</title><path class="none" d="%s"/><path class="dot" d="%s"/></g>`, cells.String(), dots.String())
	}
}

func (p *picture) tested(a, b int) bool {
	_, found := slices.BinarySearchFunc(p.m.links, [2]int{a, b}, func(l link, to [2]int) int {
		return slices.Compare([]int{l.A, l.B}, to[:])
	})
	return found
}

// at is the corner of a cell.
func (p *picture) at(a, b int) (x, y float64) {
	return p.left + float64(a)*p.cell, p.top + float64(b)*p.cell
}

// link draws a link that was tested.
func (p *picture) link(l *link) {
	x, y := p.at(l.A, l.B)
	figure := ""
	if f := p.m.figure(l); f > 0 && p.m.nodes <= mostFigures {
		if !p.m.bandwidth {
			f *= 1e3
		}
		figure = figureText(f)
	}
	tip := between(p.r, l) + ": " + p.m.told(l)
	if l.Err != "" {
		tip += ": " + reason(l.Err)
	}
	p.put("<g><title>%s</title>", escape(tip))
	p.square(x, y, p.cell-1, l.kind, l.shade, figure)
	p.put("</g>")
}

// square draws a cell with its sign, or a figure where it has none.
func (p *picture) square(x, y, size float64, k kind, shade int, figure string) {
	class, ink, sign := fmt.Sprintf("s%d", shade), fmt.Sprintf("f%d", shade), figure
	switch k {
	case failed:
		class, ink, sign = "hurt", "fhurt", "X"
	case broken:
		class, ink, sign = "bad", "fbad", "X"
	case unsteady:
		class, ink, sign = "odd", "fodd", strings.TrimSpace("! "+figure)
		if utf8.RuneCountInString(sign) > 5 {
			sign = "!"
		}
	default:
	}
	p.put(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, px(x), px(y), px(size), px(size))
	if sign != "" {
		p.text(x+size/2, y+size/2+4.5, "middle", "", span{ink, sign})
	}
}

func (p *picture) legend(x, y float64) {
	entry := func(means string) {
		p.text(x+26, y+12.5, "start", "", span{"dim", means})
		y += leading
	}
	for i, s := range shades {
		p.square(x, y, 16, passed, i, "")
		entry(s.means)
	}
	p.square(x, y, 16, unsteady, 0, "")
	entry("failed, then passed")
	p.square(x, y, 16, broken, 0, "")
	entry("failed, and the link is bad")
	p.square(x, y, 16, failed, 0, "")
	entry("failed, and a node may be bad")
	p.put(`<rect class="none" x="%s" y="%s" width="16" height="16"/><rect class="dot" x="%s" y="%s" width="2" height="2"/>`,
		px(x), px(y), px(x+7), px(y+7))
	entry("not tested")
}

// below writes what stands out, and what the links have in common where they are not drawn.
func (p *picture) below(drawn bool) {
	for _, part := range findings(p.r, p.m) {
		p.y += leading / 2
		p.line("", 0, part.title)
		for _, l := range part.lines {
			p.line("dim", 16, l)
		}
	}
	if len(p.m.links) == 0 {
		p.y += leading / 2
		p.line("", 0, "no link was tested")
		return
	}
	p.y += leading / 2
	p.line("", 0, "links: "+tally(p.m))
	if drawn {
		return
	}
	p.line("dim", 0, fmt.Sprintf("%d nodes are too many to be drawn, these are the slowest links:", p.m.nodes))
	for _, l := range p.m.slowest(5) {
		p.line("dim", 16, between(p.r, &l)+": "+p.m.told(&l))
	}
}

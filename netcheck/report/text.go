package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"muster/internal/errhint"
	"muster/netcheck"
)

const (
	mostInText = 32 // nodes whose matrix is as wide as a terminal
	mostNamed  = 20 // links that are named one by one
)

// Summary is what a check has found, in a sentence.
func Summary(r *netcheck.Record) string { return "network check: " + verdict(r) }

// Text returns the check as plain text, without colours, ended by a newline.
func Text(r *netcheck.Record) string {
	var b strings.Builder
	m := newMatrix(r)
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s", Summary(r))
	line("%s", circumstances(r))
	if r.Fake != "" {
		line("%s", stamp(r))
	}
	line("")
	b.WriteString(table(nodeRows(r, m)))
	for _, part := range findings(r, m) {
		line("\n%s", part.title)
		for _, l := range part.lines {
			line("  %s", l)
		}
	}
	if len(r.Perf) > 0 || r.PerfErr != "" {
		line("\nbandwidth of all nodes together, all-reduce%s", on(r.Perf))
		if r.PerfErr != "" {
			line("  could not be measured: %s", reason(r.PerfErr))
		}
		if len(r.Perf) > 0 {
			b.WriteString(table(perfRows(r.Perf)))
		}
	}
	writeLinks(&b, r, m)
	return b.String()
}

// verdict is what the check means for the job.
func verdict(r *netcheck.Record) string {
	var leave, parts []string
	unable := ""
	for _, n := range r.Nodes {
		unable = cmp.Or(unable, n.Unable)
		if n.Fault != nil {
			leave = append(leave, name(n.Node))
		}
	}
	switch {
	case len(leave) > 0 && len(r.Nodes) == 1:
		parts = append(parts, "the only node has to go")
	case len(leave) == 1:
		parts = append(parts, fmt.Sprintf("1 of %d nodes has to go: %s", len(r.Nodes), leave[0]))
	case len(leave) > 0:
		parts = append(parts, fmt.Sprintf("%d of %d nodes have to go: %s", len(leave), len(r.Nodes), some(leave, 5)))
	}
	if len(r.Undecided) > 0 {
		parts = append(parts, "something failed, and nobody can be blamed")
	}
	if unable != "" {
		parts = append(parts, "nothing could be tested: "+reason(unable))
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "; ")
	case len(r.Nodes) == 1:
		return "the only node may take part"
	}
	return fmt.Sprintf("all %d nodes may take part", len(r.Nodes))
}

// some names the first few of many.
func some(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func circumstances(r *netcheck.Record) string {
	var parts []string
	if !r.Began.IsZero() {
		parts = append(parts, "began "+r.Began.UTC().Format("2006-01-02 15:04:05")+" UTC")
	}
	parts = append(parts, "took "+r.Took.Round(time.Millisecond).String())
	if r.Rounds > 0 {
		parts = append(parts, counted(r.Rounds, "round")+" of pairs")
	}
	return strings.Join(parts, ", ")
}

// stamp keeps figures that are made up from being taken for real ones.
func stamp(r *netcheck.Record) string {
	return "accelerator=fake: this is not real hardware, all of it is made up by " + reason(r.Fake)
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func nodeRows(r *netcheck.Record, m *matrix) [][]string {
	rows := [][]string{{">rank", "node", "status", ">compute ms", ">own all-reduce ms", ">best all-reduce ms", ">bus GB/s", "reason"}}
	best := m.best()
	for rank, n := range r.Nodes {
		bw := "-"
		if usable(best[rank].BusBW) {
			bw = figureText(best[rank].BusBW)
		}
		rows = append(rows, []string{
			strconv.Itoa(rank), name(n.Node), cut(string(n.Status), mostName), millis(n.Local.Compute), millis(n.Local.Reduce),
			millis(best[rank].Took), bw, why(&n),
		})
	}
	return withoutBlank(rows)
}

// why is why a node has its status, and what follows where that is not the same.
func why(n *netcheck.NodeRecord) string {
	text := reason(n.Reason)
	if n.Unable != "" {
		text = "could not be tested: " + reason(n.Unable)
	}
	if n.Fault == nil {
		return text
	}
	fault := reason(n.Fault.Reason)
	if n.Status == netcheck.Fail && fault == text {
		return text
	}
	return strings.TrimSuffix("has to go: "+fault+"; "+text, "; ")
}

// withoutBlank leaves out columns of figures that nobody has.
func withoutBlank(rows [][]string) [][]string {
	blank := func(col int) bool {
		return strings.HasPrefix(rows[0][col], ">") && !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[col] != "-" })
	}
	var keep []int
	for col := range rows[0] {
		if len(rows) == 1 || !blank(col) {
			keep = append(keep, col)
		}
	}
	out := make([][]string, len(rows))
	for i, row := range rows {
		for _, col := range keep {
			out[i] = append(out[i], row[col])
		}
	}
	return out
}

// table aligns columns as text/tabwriter does, but for those whose heading begins with ">": figures end below each
// other.
func table(rows [][]string) string {
	width := make([]int, len(rows[0]))
	right := make([]bool, len(rows[0]))
	for col, heading := range rows[0] {
		rows[0][col], right[col] = strings.CutPrefix(heading, ">")
	}
	for _, row := range rows {
		for col, cell := range row {
			width[col] = max(width[col], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for col, cell := range row {
			pad := strings.Repeat(" ", width[col]-utf8.RuneCountInString(cell))
			if right[col] {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// on names the devices that were measured.
func on(perf []netcheck.Timing) string {
	if len(perf) > 0 && perf[0].Device != "" {
		return " on " + cut(perf[0].Device, mostName)
	}
	return ""
}

func perfRows(perf []netcheck.Timing) [][]string {
	rows := [][]string{{">size", ">time ms", ">algbw GB/s", ">busbw GB/s"}}
	figure := func(f float64) string {
		if !usable(f) {
			return "-"
		}
		return figureText(f)
	}
	for _, t := range perf {
		rows = append(rows, []string{bytesText(t.Bytes), millis(t.Took), figure(t.AlgBW), figure(t.BusBW)})
	}
	return rows
}

// part is some findings under a title, which may say all there is.
type part struct {
	title string
	lines []string
}

// findings are what there is to say of nodes and links beside the tables.
// probed are what was seen of the network between nodes that was not in order.
func probed(r *netcheck.Record) (lines []string) {
	for _, p := range r.Probes {
		where := reason(p.Subject.String())
		if p.Subject.Pair == "" {
			where = strings.TrimSpace(name(p.Subject.Node) + " " + where)
		}
		text := fmt.Sprintf("%s %s: %s", p.Status, where, reason(p.ID+": "+p.Reason))
		if p.Try != "" {
			text += "; " + reason(p.Try)
		}
		lines = append(lines, text)
	}
	return lines
}

func findings(r *netcheck.Record, m *matrix) (parts []part) {
	add := func(title string, lines []string) {
		if len(lines) > 0 {
			parts = append(parts, part{title, lines})
		}
	}
	var undecided, slow, bad, shaky []string
	for _, text := range r.Undecided {
		undecided = append(undecided, reason(text))
	}
	for _, s := range r.Stragglers {
		if s.Node >= 0 && s.Node < len(r.Nodes) {
			slow = append(slow, straggler(r, &s))
		}
	}
	for i := range m.links {
		l := &m.links[i]
		text := between(r, l) + ": " + m.told(l)
		if l.Err != "" {
			text += ": " + reason(l.Err)
		}
		switch l.kind {
		case broken:
			bad = append(bad, text)
		case unsteady:
			shaky = append(shaky, text)
		default:
		}
	}
	add("nobody can be blamed", undecided)
	add("stragglers", slow)
	add("bad links", first(bad))
	add("network between nodes, as it was probed (nobody leaves for it)", first(probed(r)))
	add("unsteady links, which passed when they were tested again", first(shaky))
	if r.Untested > 0 {
		parts = append(parts, part{title: "not tested: " + counted(r.Untested, "link") + "; --network-check-full tests every one"})
	}
	return parts
}

func first(lines []string) []string {
	if more := len(lines) - mostNamed; more > 0 {
		return append(lines[:mostNamed:mostNamed], fmt.Sprintf("and %d more", more))
	}
	return lines
}

func between(r *netcheck.Record, l *link) string {
	return fmt.Sprintf("%s (rank %d) and %s (rank %d)", name(r.Nodes[l.A].Node), l.A, name(r.Nodes[l.B].Node), l.B)
}

func straggler(r *netcheck.Record, s *netcheck.StragglerRecord) string {
	text := fmt.Sprintf("%s (rank %d): its %s test took %s ms, that of the others %s ms", name(r.Nodes[s.Node].Node), s.Node,
		cut(s.Resource, mostName), millis(s.Took), millis(s.Others))
	if s.Others > 0 {
		text += fmt.Sprintf(", %.1f times slower", float64(s.Took)/float64(s.Others))
	}
	if f := r.Nodes[s.Node].Fault; f == nil {
		text += "; it takes part all the same"
	} else if f.Status == errhint.Straggler {
		text += "; it has to go"
	}
	return text
}

// writeLinks writes what the tested links have in common, and a map of them where that fits.
func writeLinks(b *strings.Builder, r *netcheck.Record, m *matrix) {
	if len(m.links) == 0 {
		return
	}
	fmt.Fprintf(b, "\nlinks: %s\n", tally(m))
	if m.median > 0 {
		fmt.Fprintf(b, "shown is the %s\n", m.what())
	}
	if m.nodes <= mostInText {
		b.WriteString("\n" + heatMap(r, m) + "\n" + legend() + "\n")
		return
	}
	if slowest := m.slowest(5); len(slowest) > 0 {
		fmt.Fprintf(b, "slowest\n")
		for _, l := range slowest {
			fmt.Fprintf(b, "  %s: %s\n", between(r, &l), m.told(&l))
		}
	}
}

func legend() string {
	var parts []string
	for _, s := range shades {
		parts = append(parts, s.char+s.char+" "+s.means)
	}
	return strings.Join(parts, "   ") + "\nX failed   ! failed, then passed   · not tested"
}

// tally counts links.
func tally(m *matrix) string {
	parts := []string{fmt.Sprintf("%d tested, %d passed", len(m.links), m.count[passed])}
	for _, k := range []struct {
		kind  kind
		means string
	}{{unsteady, "unsteady"}, {failed, "failed where a node may be bad"}, {broken, "bad"}} {
		if n := m.count[k.kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, k.means))
		}
	}
	return strings.Join(parts, ", ")
}

// heatMap is a line for each node with a cell for each one before it, so that every pair is there once.
func heatMap(r *netcheck.Record, m *matrix) string {
	const most = 24 // of a name, so that 32 nodes take 132 columns
	cells := make([][]string, m.nodes)
	for row := range cells {
		cells[row] = slices.Repeat([]string{"  ·"}, row)
	}
	for i := range m.links {
		l := &m.links[i]
		switch l.kind {
		case failed, broken:
			cells[l.B][l.A] = "  X"
		case unsteady:
			cells[l.B][l.A] = "  !"
		default:
			cells[l.B][l.A] = " " + shades[l.shade].char + shades[l.shade].char
		}
	}
	rows := [][]string{{"", ">", ""}}
	for row, n := range r.Nodes {
		rows = append(rows, []string{shorten(n.Node, most, most/2), strconv.Itoa(row), strings.Join(cells[row], "")})
	}
	for col := range m.nodes - 1 {
		rows[0][2] += fmt.Sprintf("%3d", col)
	}
	return table(rows)
}

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"muster/netcheck"
)

// kind is what became of a link.
type kind int

const (
	passed   kind = iota
	unsteady      // passed, but not each time
	failed        // a node of it may be to blame
	broken        // failed, and it is the link
)

// link is a link that was tested.
type link struct {
	netcheck.LinkRecord
	kind  kind
	pace  float64 // speed relative to the median, 0: not known
	shade int     // how slow, 0 to len(shades)-1
}

// shades are the least pace of each shade: the more ink, the slower, since what is slow is looked for.
var shades = [...]struct {
	least float64
	char  string
	means string
}{
	{0.9, "░", "90 % of the median's speed or more"},
	{0.7, "▒", "70 to 90 %"},
	{0.5, "▓", "50 to 70 %"},
	{0, "█", "less than half"},
}

// matrix is the links of a check.
type matrix struct {
	nodes int
	links []link // by ranks
	// bandwidth says that links are compared by that, and not by time: where all that passed have one.
	bandwidth bool
	median    float64 // GB/s, or seconds; 0: nothing to compare
	bytes     int64   // size of the test, 0: not known, or not always the same
	count     [broken + 1]int
}

func newMatrix(r *netcheck.Record) *matrix {
	m := &matrix{nodes: len(r.Nodes), bandwidth: true}
	for _, l := range r.Links {
		if l.A > l.B {
			l.A, l.B = l.B, l.A
		}
		if l.A < 0 || l.B >= m.nodes || l.A == l.B || l.Passed <= 0 && l.Failed <= 0 {
			continue
		}
		m.links = append(m.links, link{LinkRecord: l, kind: kindOf(&l)})
	}
	byRanks := func(a, b link) int { return cmp.Or(a.A-b.A, a.B-b.B) }
	slices.SortStableFunc(m.links, byRanks)
	m.links = slices.CompactFunc(m.links, func(a, b link) bool { return byRanks(a, b) == 0 })
	for i := range m.links {
		l := &m.links[i]
		m.count[l.kind]++
		m.bandwidth = m.bandwidth && (!l.passed() || usable(l.Best.BusBW))
	}
	m.compare()
	return m
}

func kindOf(l *netcheck.LinkRecord) kind {
	switch {
	case l.Faulty:
		return broken
	case l.Passed <= 0:
		return failed
	case l.Failed > 0:
		return unsteady
	}
	return passed
}

func (l *link) passed() bool { return l.kind == passed || l.kind == unsteady }

func usable(figure float64) bool { return figure > 0 && !math.IsInf(figure, 0) }

// figure is what a link is compared by, 0 where it has none.
func (m *matrix) figure(l *link) float64 {
	f := l.Best.Took.Seconds()
	if m.bandwidth {
		f = l.Best.BusBW
	}
	if !l.passed() || !usable(f) {
		return 0
	}
	return f
}

// compare finds the median, and how each link compares with it.
func (m *matrix) compare() {
	var all []float64
	sizes := map[int64]bool{}
	for i := range m.links {
		if f := m.figure(&m.links[i]); f > 0 {
			all = append(all, f)
			m.bytes = m.links[i].Best.Bytes
			sizes[m.bytes] = true
		}
	}
	if len(sizes) != 1 {
		m.bytes = 0
	}
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	m.median = all[(len(all)-1)/2]/2 + all[len(all)/2]/2
	for i := range m.links {
		l := &m.links[i]
		f := m.figure(l)
		if f == 0 {
			continue
		}
		if l.pace = f / m.median; !m.bandwidth {
			l.pace = m.median / f
		}
		// Rounded as it is told, so that figure and shade agree.
		for l.shade = 0; math.Round(100*l.pace) < 100*shades[l.shade].least; {
			l.shade++
		}
	}
}

// what says what the shades compare, where there is a median.
func (m *matrix) what() string {
	size := ""
	if m.bytes > 0 {
		size = " of " + bytesText(m.bytes)
	}
	if m.bandwidth {
		return fmt.Sprintf("bus bandwidth of an all-reduce%s, median %s GB/s", size, figureText(m.median))
	}
	return fmt.Sprintf("time of an all-reduce%s, median %s ms", size, figureText(1e3*m.median))
}

// told is the figures of a link.
func (m *matrix) told(l *link) string {
	tests := fmt.Sprintf("%d of %d tests failed", l.Failed, l.Failed+l.Passed)
	if !l.passed() {
		return tests
	}
	text := "all-reduce"
	if l.Best.Bytes > 0 {
		text += " of " + bytesText(l.Best.Bytes)
	}
	if l.Best.Took > 0 {
		text += " in " + millis(l.Best.Took) + " ms"
	}
	if usable(l.Best.BusBW) {
		text += ", " + figureText(l.Best.BusBW) + " GB/s"
	}
	if l.pace > 0 {
		text += fmt.Sprintf(", %.0f %% of the median's speed", 100*l.pace)
	}
	if l.kind == unsteady {
		text += ", " + tests
	}
	return text
}

// slowest returns the slowest links, n at most.
func (m *matrix) slowest(n int) []link {
	known := slices.DeleteFunc(slices.Clone(m.links), func(l link) bool { return l.pace == 0 })
	slices.SortStableFunc(known, func(a, b link) int { return cmp.Compare(a.pace, b.pace) })
	return known[:min(n, len(known))]
}

// best is the fastest test of each node with another, by rank; zero where none passed.
func (m *matrix) best() []netcheck.Timing {
	best := make([]netcheck.Timing, m.nodes)
	for i := range m.links {
		l := &m.links[i]
		if !l.passed() || l.Best.Took <= 0 {
			continue
		}
		for _, rank := range []int{l.A, l.B} {
			if b := &best[rank]; b.Took == 0 || l.Best.Took < b.Took {
				*b = l.Best
			}
		}
	}
	return best
}

// figureText has three digits that count.
func figureText(f float64) string {
	switch {
	case f >= 99.95:
		return fmt.Sprintf("%.0f", f)
	case f >= 9.995:
		return fmt.Sprintf("%.1f", f)
	case f >= 0.9995:
		return fmt.Sprintf("%.2f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

// millis is a time in ms, "-" where it was not measured.
func millis(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return figureText(1e3 * d.Seconds())
}

// bytesText is a size in the largest unit that divides it, since sizes of tests are round.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for ; i < len(units)-1 && n >= 1024 && n%1024 == 0; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/report"
)

// Top is what muster top shows of a job. The zero Top has taken in nothing yet. It is not for several goroutines.
type Top struct {
	answer control.Answer
	cpu    map[int]cpuUse // by rank
	from   int            // the first row that is shown
	height int            // rows that there is room for
	note   string
}

// cpuUse is how much of a processor a rank had used, and how much it has used a second since the look before.
type cpuUse struct {
	pid     int
	seconds float64
	at      time.Time
	rate    float64
	known   bool
}

// Take takes in how the job stands.
func (t *Top) Take(d control.Answer, now time.Time) {
	t.answer, t.note = d, ""
	before := t.cpu
	t.cpu = make(map[int]cpuUse, len(d.Ranks))
	for i := range d.Ranks {
		r := &d.Ranks[i]
		if r.CPUSeconds == nil {
			continue
		}
		u := cpuUse{pid: r.PID, seconds: *r.CPUSeconds, at: now}
		if r.UsageTime != nil {
			u.at = *r.UsageTime
		}
		if b, known := before[r.Rank]; known && b.pid == r.PID && u.at.After(b.at) {
			u.rate, u.known = max(0, u.seconds-b.seconds)/u.at.Sub(b.at).Seconds(), true
		} else if known && b.pid == r.PID && u.at.Equal(b.at) { // another node reads it every few seconds
			u = b
		} else if up := r.StartTime; up != nil && now.Sub(*up) > 0 { // since its start
			u.rate, u.known = u.seconds/now.Sub(*up).Seconds(), true
		}
		t.cpu[r.Rank] = u
	}
}

// Note replaces the line at the foot of the screen until the job has said again how it stands.
func (t *Top) Note(text string) { t.note = text }

// Scroll moves the table by the key that was typed: arrows, PgUp, PgDn, Home, End and the letters of less.
func (t *Top) Scroll(key string) {
	switch key {
	case "\x1b[A", "k":
		t.from--
	case "\x1b[B", "j":
		t.from++
	case "\x1b[5~":
		t.from -= t.height
	case "\x1b[6~", " ":
		t.from += t.height
	case "\x1b[H", "\x1b[1~", "g":
		t.from = 0
	case "\x1b[F", "\x1b[4~", "G":
		t.from = len(t.answer.Ranks)
	}
	t.from = max(0, min(t.from, len(t.answer.Ranks)-t.height))
}

// Screen is what fills a terminal of a width and a height, from its upper left corner on: as many ranks as there is room
// for, with the colors and the moves of the cursor that a terminal understands.
func (t *Top) Screen(width, height int, now time.Time) string {
	head := t.head(now)
	t.height = max(1, height-len(head)-2)
	t.Scroll("")
	rows := t.lines(now, t.height)[len(head):]
	last := len(t.answer.Ranks)
	foot := fmt.Sprintf("ranks %d-%d of %d  q: end", min(last, t.from+1), min(last, t.from+t.height), last)
	if t.note != "" {
		foot = t.note
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range slices.Concat(head, rows) {
		if i == height-1 {
			break
		}
		style, end := "", ""
		switch {
		case i == 0:
			style, end = "\x1b[1m", "\x1b[m"
		case i == len(head) && len(rows) > 0:
			style, end = "\x1b[7m", "\x1b[m"
		case strings.HasPrefix(line, markFailed):
			style, end = "\x1b[31m", "\x1b[m"
		case strings.HasPrefix(line, markSlow):
			style, end = "\x1b[33m", "\x1b[m"
		}
		b.WriteString(style + cutTo(line, width) + end + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J\x1b[" + strconv.Itoa(height) + ";1H" + cutTo(foot, width) + "\x1b[K")
	return b.String()
}

// Text is all that there is, once, for who has no terminal.
func (t *Top) Text(now time.Time) string { return strings.Join(t.lines(now, 0), "\n") + "\n" }

// head says how the job stands.
func (t *Top) head(now time.Time) []string {
	d := &t.answer
	line := []string{printable.Output(d.RunID) + " (" + printable.Output(d.Name) + ")", printable.Output(string(d.Phase))}
	if d.Reason != "" {
		line = append(line, printable.Output(string(d.Reason)))
	}
	line = append(line, "up "+since(d.StartTime, now), wording.Plural(d.WorldSize, "worker")+" on "+wording.Plural(d.Nodes, "node"),
		"round "+strconv.Itoa(d.Generation), restartsText(&d.Status))
	if g := d.Accounting; g != nil && g.WallSeconds > 0 {
		line = append(line, fmt.Sprintf("goodput %.1f %%", g.Goodput*100))
	}
	head := []string{strings.Join(line, "  ")}
	if d.Message != "" {
		head = append(head, printable.Output(d.Message))
	}
	if c := d.RootCause; c != nil {
		head = append(head, printable.Output(fmt.Sprintf("last failure: rank %d on %s, status %d %s", c.Rank, c.Host, c.ExitCode, c.Cause)))
	}
	for i := range d.Sidecars {
		head = append(head, sidecarText(&d.Sidecars[i], now))
	}
	return head
}

// The marks in front of rows: colour is not all that tells them.
const (
	markFailed = "! "
	markSlow   = "~ "
	markOther  = "  "
)

// lines are the head and a table of ranks: as many as are asked for from the first that is shown, all for 0.
func (t *Top) lines(now time.Time, most int) []string {
	lines := t.head(now)
	ranks := slices.Clone(t.answer.Ranks)
	if len(ranks) == 0 {
		return append(lines, "no worker has been started yet")
	}
	middle := middleOf(ranks)
	slices.SortStableFunc(ranks, func(x, y report.Rank) int {
		return cmp.Or(cmp.Compare(middle.order(&x), middle.order(&y)), cmp.Compare(x.Rank, y.Rank))
	})
	if most > 0 {
		from := max(0, min(t.from, len(ranks)-most))
		ranks = ranks[from:min(len(ranks), from+most)]
	}
	node := len("NODE")
	for i := range ranks {
		node = max(node, len(printable.Output(ranks[i].Node)))
	}
	node = min(node, 24)
	devices := slices.ContainsFunc(t.answer.Ranks, func(r report.Rank) bool { return len(r.Devices) > 0 })
	device := func(memory, use string) string {
		if !devices {
			return ""
		}
		return fmt.Sprintf(" %13s %4s", memory, use)
	}
	lines = append(lines, fmt.Sprintf("  %5s  %-*s %-12s %9s %9s %6s %8s%s %4s %7s %9s", "RANK", node, "NODE", "STATE", "STEP", "STEP TIME",
		"CPU", "MEM", device("DEVICE MEM", "USE"), "RST",
		"UP", "OUTPUT"))
	for i := range ranks {
		r := &ranks[i]
		mark := markOther
		switch middle.order(r) {
		case 0, 1:
			mark = markFailed
		case 2:
			mark = markSlow
		}
		step, took, cpu := "-", "-", "-"
		if p := r.Progress; p != nil {
			if step = strconv.FormatInt(p.Step, 10); p.StepSeconds != nil {
				took = fmt.Sprintf("%.3gs", *p.StepSeconds)
			}
		}
		if u := t.cpu[r.Rank]; u.known {
			cpu = fmt.Sprintf("%.0f%%", u.rate*100)
		}
		up := "-"
		if r.Phase == report.PhaseRunning {
			up = since(r.StartTime, now)
		}
		lines = append(lines,
			fmt.Sprintf("%s%5d  %-*s %-12s %9s %9s %6s %8s%s %4d %7s %9s", mark, r.Rank, node, cutTo(printable.Output(r.Node), node),
				printable.Output(string(r.Phase)), step, took, cpu, bytesText(r.ResidentBytes),
				device(deviceMemoryText(r), deviceUseText(r)), r.Restarts, up, ago(r.LastOutput, now)))
	}
	return lines
}

// middle is what single ranks are compared with.
type middle struct {
	took  float64 // of a step, in seconds; 0: not known
	step  int64
	steps bool
}

func middleOf(ranks []report.Rank) (m middle) {
	var took []float64
	var steps []int64
	for i := range ranks {
		if p := ranks[i].Progress; p != nil {
			steps = append(steps, p.Step)
			if p.StepSeconds != nil {
				took = append(took, *p.StepSeconds)
			}
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		m.took = took[len(took)/2]
	}
	if len(steps) > 0 {
		slices.Sort(steps)
		m.step, m.steps = steps[len(steps)/2], true
	}
	return m
}

// As on the page: how many times the middle time of a step is slow, and how many steps behind.
const (
	slowBy   = 1.5
	behindBy = 3
)

// order is 0 for ranks that have failed, 1 where nobody knows, 2 for slow ones, 3 for others that do not run.
func (m middle) order(r *report.Rank) int {
	p := r.Progress
	switch {
	case r.Phase == report.PhaseFailed:
		return 0
	case r.Phase == report.PhaseUnknown:
		return 1
	case r.Phase == report.PhaseRunning && p != nil &&
		(p.StepSeconds != nil && m.took > 0 && *p.StepSeconds > slowBy*m.took || m.steps && p.Step < m.step-behindBy):
		return 2
	case r.Phase != report.PhaseRunning && r.Phase != report.PhaseSucceeded:
		return 3
	}
	return 4
}

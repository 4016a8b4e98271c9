package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"muster/internal/printable"
	"muster/internal/proc"
)

const (
	// summaryWidth is the widest rule of torchrun's summary.
	summaryWidth = 60
	// maxListed is how many failures beside the root cause are shown in full; on a large node they are all alike.
	maxListed = 8
	// maxTraceback is how many last lines of a call stack are shown.
	maxTraceback = 60
)

// Text returns the report for people. Its frame is that of torchrun's summary (PyTorch 2.14.1, observed), which other
// programs read: title, "Failures:", "Root Cause (first observed failure):", and their fields. A field that torchrun
// fills with nothing ("<NO_OTHER_FAILURES>", "error_file: <N/A>", "To enable traceback see: …") is left out. What
// torchrun does not know follows behind the fields of each failure, and what people look for next stands at the end:
// whether anything was started again, why nothing is any more, and where the logs are.
func (r *Report) Text() string {
	title := printable.Output(r.Title) + " FAILED"
	var body []string
	add := func(lines ...string) { body = append(body, lines...) }
	rule := "\x00" // replaced when the width is known
	if h := r.HeldUp; h != nil {
		add(rule, "Did not come, and the others gave up waiting:", fmt.Sprintf("  rank      : %d", h.Rank))
		if h.Node != "" {
			add("  host      : " + printable.Output(h.Node))
		}
		add("  why       : " + printable.Output(h.Sentence))
	}
	if len(r.Others) > 0 {
		add(rule, "Failures:")
	}
	for i, f := range r.Others[:min(len(r.Others), maxListed)] {
		add(fmt.Sprintf("[%d]:", i+1))
		add(r.entry(&f)...)
	}
	if more := len(r.Others) - maxListed; more > 0 {
		add(fmt.Sprintf("  and %d more: %s", more, endings(exitsOf(r.Others[maxListed:]))))
	}
	add(rule, "Root Cause (first observed failure):", "[0]:")
	add(r.entry(&r.Root)...)
	if len(r.Stopped) > 0 {
		where := ""
		if r.Nodes > 1 {
			where = ", on " + printable.Output(r.Host) + " (other nodes are not listed)"
		}
		add(rule, "Ended while muster was stopping the workers"+where+":", "  "+endings(r.Stopped))
	}
	if r.Restarts != "" || r.Logs != "" {
		add(rule)
	}
	if r.Restarts != "" {
		add("  restarts  : " + printable.Output(r.Restarts))
	}
	if r.Logs != "" {
		add("  logs      : " + printable.Output(r.Logs))
	}
	width := len(title)
	for _, line := range body {
		width = max(width, utf8.RuneCountInString(line))
	}
	width = min(width, summaryWidth)
	outer, inner := strings.Repeat("=", width), strings.Repeat("-", width)
	text := strings.Join(append(append([]string{outer, title}, body...), outer), "\n") + "\n"
	return strings.ReplaceAll(text, rule, inner)
}

func exitsOf(failures []Failure) []Exit {
	exits := make([]Exit, len(failures))
	for i := range failures {
		exits[i] = failures[i].Exit
	}
	return exits
}

// entry returns the lines about one failure.
func (r *Report) entry(f *Failure) []string {
	file, trace := "", []string(nil)
	if f.Signal != 0 {
		trace = []string{fmt.Sprintf("Signal %d (%s) received by PID %d", int(f.Signal), proc.SignalName(f.Signal), f.PID)}
	}
	if f.Error != nil {
		file = printable.Output(f.Error.Path)
		if lines := f.Error.lines(); len(lines) > 0 {
			trace = lines[max(len(lines)-maxTraceback, 0):]
		}
		if f.Error.Problem != "" {
			file += " (cannot be used: " + printable.Output(f.Error.Problem) + ")"
		}
	}
	signal := ""
	if f.Signal != 0 {
		signal = "  (" + proc.SignalName(f.Signal) + ")"
	}
	lines := []string{
		"  time      : " + f.At.Format("2006-01-02_15:04:05"),
		"  host      : " + printable.Output(f.Host),
		fmt.Sprintf("  rank      : %d (local_rank: %d)", f.Rank, f.LocalRank),
		fmt.Sprintf("  exitcode  : %d (pid: %d)%s", f.exitcode(), f.PID, signal),
	}
	if file != "" {
		lines = append(lines, "  error_file: "+file)
	}
	for i, line := range trace {
		if line = printable.Output(line); i == 0 {
			line = "traceback : " + line
		}
		lines = append(lines, "  "+line)
	}
	if r.Nodes > 1 {
		lines = append(lines, fmt.Sprintf("  node      : group rank %d of %d nodes", f.GroupRank, r.Nodes))
	}
	if f.Secondary {
		// What a victim says, the root cause says better, and there may be many victims.
		how := "its connection broke when rank %d failed"
		if f.WaitedInVain() {
			how = "it waited in vain, and rank %d had failed"
		}
		return append(lines, "  secondary : "+fmt.Sprintf(how, f.VictimOf))
	}
	for _, fact := range f.Evidence {
		lines = append(lines, "  evidence  : "+printable.Output(fact))
	}
	if f.Error == nil && len(f.LastLines) > 0 {
		lines = append(lines, "  last lines:")
		for _, line := range f.LastLines[max(len(f.LastLines)-lastLinesShown, 0):] {
			lines = append(lines, strings.TrimRight("    "+printable.Output(line), " "))
		}
	}
	if f.Hint != "" {
		lines = append(lines, "  hint      : "+f.Hint)
	}
	return lines
}

// endings says how many workers ended, those that ended alike together: "SIGTERM: ranks 0, 2-6; exit 1: rank 7".
func endings(exits []Exit) string {
	ranks := make(map[string][]int)
	for i := range exits {
		how := exits[i].Ending()
		ranks[how] = append(ranks[how], exits[i].Rank)
	}
	type group struct {
		how   string
		ranks []int
	}
	groups := make([]group, 0, len(ranks))
	for how, list := range ranks {
		slices.Sort(list)
		groups = append(groups, group{how, list})
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.ranks[0], b.ranks[0]) })
	parts := make([]string, len(groups))
	for i, g := range groups {
		word := "rank "
		if len(g.ranks) > 1 {
			word = "ranks "
		}
		parts[i] = g.how + ": " + word + rankList(g.ranks)
	}
	return strings.Join(parts, "; ")
}

// rankList writes sorted ranks as "0-3, 7".
func rankList(ranks []int) string {
	var b strings.Builder
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(ranks[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(ranks[j]))
		}
		i = j + 1
	}
	return b.String()
}

package show

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/report"
)

// Status writes how a job stands: a line or two about the job, and a table of its ranks, with more columns if wide.
func Status(w io.Writer, d *control.Answer, wide bool, now time.Time) error {
	line := []string{"job " + printable.Output(d.RunID) + " (" + printable.Output(d.Name) + "): " + printable.Output(string(d.Phase))}
	if d.Died {
		line[0] += " when its muster died"
	}
	if d.Reason != "" {
		line = append(line, printable.Output(string(d.Reason)))
	}
	if d.StartTime != nil {
		line = append(line, "up "+since(d.StartTime, now))
	}
	if d.Nodes > 0 {
		line = append(line, fmt.Sprintf("%s on %s", wording.Plural(d.WorldSize, "worker"), wording.Plural(d.Nodes, "node")))
	}
	line = append(line, "round "+strconv.Itoa(d.Generation), restartsText(&d.Status))
	say(w, "%s\n", strings.Join(line, ", "))
	if h := d.Hang; h != nil {
		say(w, "  the workers hung at %s: %s\n", h.Time.Local().Format(time.TimeOnly), printable.Output(h.Sentence))
	}
	for i, most := 0, 4; i < len(d.Ranks) && most > 0; i++ {
		if slow := d.Ranks[i].Slow; slow != "" {
			most--
			say(w, "  %s\n", printable.Output(slow))
		}
	}
	if d.Message != "" {
		say(w, "  %s\n", printable.Output(d.Message))
	}
	for i := range d.Sidecars {
		say(w, "  %s\n", sidecarText(&d.Sidecars[i], now))
	}
	for _, t := range d.Tasks {
		if t.LastKnown != nil {
			say(w, "  node %s does not answer: last known %s ago\n", printable.Output(t.Node), since(t.LastKnown, now))
		}
	}
	if wide {
		for i := range d.Tasks {
			if t := &d.Tasks[i]; len(t.Traffic) > 0 {
				say(w, "  network of node %s: %s\n", printable.Output(t.Node), trafficText(t.Traffic))
			}
		}
	}
	if len(d.Ranks) == 0 {
		if d.ExitStatus == nil {
			say(w, "  no worker has been started yet\n")
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	steps := slices.ContainsFunc(d.Ranks, func(r report.Rank) bool { return r.Progress != nil })
	say(t, "RANK\tNODE\tPID\tPHASE\tRESTARTS\tCPU\tMEM\tUPTIME")
	if steps {
		say(t, "\tSTEP\tSTEP TIME")
		if wide {
			say(t, "\tTOLD\tVALUES")
		}
	}
	compared := wide && slices.ContainsFunc(d.Ranks, func(r report.Rank) bool { return r.Slowness != nil })
	if compared {
		say(t, "\tSLOWNESS")
	}
	devices := wide && slices.ContainsFunc(d.Ranks, func(r report.Rank) bool { return len(r.Devices) > 0 })
	if devices {
		say(t, "\tDEVICE\tDEVICE MEM\tDEVICE USE")
	}
	if wide {
		say(t, "\tLOCAL\tOUTPUT\tLAST EXIT")
	}
	say(t, "\n")
	ranks := slices.Clone(d.Ranks)
	slices.SortStableFunc(ranks, func(x, y report.Rank) int { return x.Rank - y.Rank })
	for _, r := range ranks {
		up := "-"
		if r.Phase == report.PhaseRunning || r.Phase == report.PhaseTerminating {
			up = since(r.StartTime, now)
		}
		say(t, "%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s", r.Rank, printable.Output(r.Node), cell(r.PID),
			printable.Output(string(r.Phase)), r.Restarts,
			cpuText(r.CPUSeconds), bytesText(r.ResidentBytes), up)
		if steps {
			say(t, "\t%s\t%s", stepText(r.Progress), stepTimeText(r.Progress))
			if wide {
				say(t, "\t%s\t%s", toldText(r.Progress, now), valuesText(r.Progress))
			}
		}
		if compared {
			say(t, "\t%s", slownessText(&r))
		}
		if devices {
			say(t, "\t%s\t%s\t%s", deviceText(&r), deviceMemoryText(&r), deviceUseText(&r))
		}
		if wide {
			say(t, "\t%d\t%s\t%s", r.LocalRank, ago(r.LastOutput, now), exitText(r.LastExit, now))
		}
		say(t, "\n")
	}
	return t.Flush()
}

// restartsText is how often workers were started again, and how many of these times are counted where some are not: a restart
// that was asked for, and new rounds because nodes came or went.
func restartsText(d *report.Status) string {
	all := d.Restarts()
	text := wording.Plural(all, "restart")
	if all > d.RestartCount {
		text += fmt.Sprintf(" (%d counted)", d.RestartCount)
	}
	return text
}

// trafficText is what interfaces have carried, of the first of them.
func trafficText(list []report.Traffic) string {
	const most = 4
	var parts []string
	for i := range list[:min(len(list), most)] {
		t := &list[i]
		received, sent := int64(min(t.ReceivedBytes, 1<<62)), int64(min(t.SentBytes, 1<<62))
		parts = append(parts, fmt.Sprintf("%s received %s, sent %s", printable.Output(t.Interface), bytesText(&received), bytesText(&sent)))
	}
	return strings.Join(parts, "; ")
}

// deviceText are the numbers of a worker's accelerators.
func deviceText(r *report.Rank) string {
	if len(r.Devices) == 0 {
		return "-"
	}
	var list []string
	for i := range r.Devices {
		list = append(list, strconv.Itoa(r.Devices[i].Index))
	}
	return strings.Join(list, ",")
}

// deviceMemoryText is how much memory of its accelerators a worker has, of how much.
func deviceMemoryText(r *report.Rank) string {
	used, total, known := r.DeviceMemory()
	switch {
	case !known:
		return "-"
	case total == 0:
		return bytesText(&used)
	}
	return bytesText(&used) + "/" + bytesText(&total)
}

// deviceUseText is how much they compute.
func deviceUseText(r *report.Rank) string {
	share, known := r.DeviceBusy()
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", share*100)
}

// slownessText is how slow a rank is, compared with the others.
func slownessText(r *report.Rank) string {
	if r.Slowness == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *r.Slowness)
}

// stepText is how far a worker has come.
func stepText(p *report.Progress) string {
	if p == nil {
		return "-"
	}
	text := strconv.FormatInt(p.Step, 10)
	if p.Total > 0 {
		text += "/" + strconv.FormatInt(p.Total, 10)
	}
	if p.Section != "" {
		text += " (" + printable.Output(p.Section) + ")"
	}
	return text
}

// stepTimeText is how long a step takes.
func stepTimeText(p *report.Progress) string {
	if p == nil || p.StepSeconds == nil {
		return "-"
	}
	switch s := *p.StepSeconds; {
	case s < 0.1:
		return fmt.Sprintf("%.1fms", 1000*s)
	case s < 60:
		return fmt.Sprintf("%.2fs", s)
	default:
		return shortTime(time.Duration(s * float64(time.Second)))
	}
}

func toldText(p *report.Progress, now time.Time) string {
	if p == nil {
		return "-"
	}
	return ago(&p.Time, now)
}

// valuesText are the values of the last step, by name.
func valuesText(p *report.Progress) string {
	if p == nil || len(p.Values)+len(p.NotFinite) == 0 {
		return "-"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		list = append(list, printable.Output(name)+"="+strconv.FormatFloat(p.Values[name], 'g', 6, 64))
	}
	for _, name := range p.NotFinite {
		list = append(list, printable.Output(name)+"=nan")
	}
	return strings.Join(list, " ")
}

// exitText is how a worker ended last.
func exitText(e *report.RankExit, now time.Time) string {
	if e == nil {
		return "-"
	}
	how := "status " + strconv.Itoa(e.ExitCode)
	if e.Signal != "" {
		how = printable.Output(e.Signal)
	}
	if e.Stopped {
		how += " (stopped)"
	}
	return how + ", " + ago(&e.Time, now)
}

// sidecarText is how a process beside the workers stands.
func sidecarText(s *report.Sidecar, now time.Time) string {
	parts := []string{
		fmt.Sprintf("sidecar %d on %s (%s): %s", s.Index, printable.Output(s.Node), printable.Output(s.Command),
			printable.Output(string(s.State))),
	}
	if s.PID != 0 {
		parts = append(parts, fmt.Sprintf("process %d", s.PID))
	}
	if s.StartTime != nil {
		parts = append(parts, "up "+since(s.StartTime, now))
	}
	if s.Port != 0 && s.Healthy != nil {
		takes := "takes connections"
		if !*s.Healthy {
			takes = "takes no connections"
		}
		parts = append(parts, fmt.Sprintf("port %d %s", s.Port, takes))
	}
	parts = append(parts, wording.Plural(s.Restarts, "restart"))
	if s.LastExit != nil {
		parts = append(parts, "last exit "+exitText(s.LastExit, now))
	}
	if s.Problem != "" {
		parts = append(parts, printable.Output(s.Problem))
	}
	return strings.Join(parts, ", ")
}

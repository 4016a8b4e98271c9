package show

import (
	"strings"
	"testing"
	"time"

	"muster/launch/control"
	"muster/launch/report"
)

// TestTopOrder: who needs somebody's eyes comes first, and no line of a worker's words breaks the table.
func TestTopOrder(t *testing.T) {
	t.Parallel()
	now := time.Now()
	step := func(n int64, seconds float64) *report.Progress {
		return &report.Progress{Step: n, StepSeconds: &seconds, Time: now}
	}
	began, cpu := now.Add(-10*time.Second), 5.0
	var s Top
	s.Take(control.Answer{Status: report.Status{
		RunID: "one", Name: "a\x1b[2J\nb", Phase: report.PhaseRunning, WorldSize: 6, Nodes: 2,
		Ranks: []report.Rank{
			{Rank: 0, Node: "n0", Phase: report.PhaseRunning, Progress: step(100, 0.2), CPUSeconds: &cpu, StartTime: &began, PID: 7},
			{Rank: 1, Node: "n0", Phase: report.PhaseRunning, Progress: step(100, 0.5)},
			{Rank: 2, Node: "n0", Phase: report.PhaseTerminating, Progress: step(100, 0.2)},
			{Rank: 3, Node: "n1", Phase: report.PhaseRunning, Progress: step(90, 0.2)},
			{Rank: 4, Node: "n1", Phase: report.PhaseUnknown, Progress: step(100, 0.2)},
			{Rank: 5, Node: "n1", Phase: report.PhaseFailed, Progress: step(100, 0.2)},
		},
	}}, now)
	lines := s.lines(now, 0)
	if strings.ContainsAny(strings.Join(lines, ""), "\x1b\n") {
		t.Errorf("%q", lines)
	}
	var order []string
	for _, l := range lines[2:] {
		order = append(order, l[:7])
	}
	if got := strings.Join(order, ","); got != "!     5,!     4,~     1,~     3,      2,      0" {
		t.Errorf("%s\n%s", got, strings.Join(lines, "\n"))
	}
	if last := lines[len(lines)-1]; !strings.Contains(last, " 50% ") || !strings.Contains(last, " 0.2s ") {
		t.Errorf("%s", last)
	}
	s.height = 2
	for _, key := range []string{"G", "\x1b[B", "k"} {
		s.Scroll(key)
	}
	if s.from != 3 {
		t.Errorf("it stands at %d", s.from)
	}
	if s.Scroll("\x1b[5~"); s.from != 1 || len(s.lines(now, 2)) != 4 {
		t.Errorf("it stands at %d: %q", s.from, s.lines(now, 2))
	}
}

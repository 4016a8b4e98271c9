package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/report"
)

// newTopCmd is "muster top".
func newTopCmd(a *app) *cobra.Command {
	every := time.Second
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "top [--every TIME] [JOB]",
		Short: "Watch the ranks of a job in the terminal, failed and slow ones first",
		Long: `Watch the ranks of a job in the terminal: state, step, time of a step, CPU, memory, restarts
and last output, those first that have failed, are slow (1.5 times the median time of a step,
or more than three steps behind) or do not run. q ends it; the arrow keys, PgUp and PgDn
scroll. Where standard output is no terminal it is written once.

` + jobHelp,
		Example:     "  muster top\n  muster top train-7 --every 5s",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return errhint.Usagef("--every %v: give at least 100ms", every)
			}
			job, _, err := a.jobAt(cmd.Context(), page, args)
			if err != nil {
				return err
			}
			return a.top(cmd.Context(), job.Client(), every)
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().DurationVar(&every, "every", every, "how often it is looked at the job")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// top shows a job until it ends or q is typed.
func (a *app) top(ctx context.Context, c *control.Client, every time.Duration) error {
	var t topScreen
	d, err := c.Status(ctx, control.World)
	if err != nil {
		return err
	}
	t.take(d, time.Now())
	fd := int(a.stdout.Fd())
	if !term.IsTerminal(fd) {
		say(a.stdout, "%s", strings.Join(t.lines(time.Now(), 0), "\n")+"\n")
		return nil
	}
	keys, restore := a.keys()
	defer restore()
	say(a.stdout, "\x1b[?1049h\x1b[?25l")
	defer say(a.stdout, "\x1b[?25h\x1b[?1049l")
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		t.draw(a, fd, time.Now())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-resized:
		case key, open := <-keys:
			if !open || key == "q" || key == "Q" || key == "\x03" || key == "\x04" {
				return nil
			}
			t.scroll(key)
		case <-tick.C:
			d, err := c.Status(ctx, control.World)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err == nil:
				t.take(d, time.Now())
			case errhint.CodeOf(err) == errhint.TryAgain && !control.Unreachable(err):
				t.note = err.Error()
			default:
				defer say(a.stderr, "the job has ended\n") // on the screen that comes back
				return nil
			}
		}
	}
}

// keys are those that are typed, and what undoes the reading; nil where there is no keyboard.
func (a *app) keys() (typed <-chan string, restore func()) {
	fd := int(a.stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, func() {}
	}
	keys := make(chan string)
	go func() { // it ends with the program: nothing wakes who reads a terminal
		defer close(keys)
		buf := make([]byte, 16)
		for {
			n, err := a.stdin.Read(buf)
			if n > 0 {
				keys <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return keys, func() { _ = term.Restore(fd, state) }
}

// topScreen is what muster top shows.
type topScreen struct {
	answer control.Answer
	cpu    map[int]topCPU // by rank
	from   int            // the first row that is shown
	height int            // rows that there is room for
	note   string
}

// topCPU is how much of a processor a rank had used, and how much it has used a second since the look before.
type topCPU struct {
	pid     int
	seconds float64
	at      time.Time
	rate    float64
	known   bool
}

// take takes in how the job stands.
func (t *topScreen) take(d control.Answer, now time.Time) {
	t.answer, t.note = d, ""
	before := t.cpu
	t.cpu = make(map[int]topCPU, len(d.Ranks))
	for i := range d.Ranks {
		r := &d.Ranks[i]
		if r.CPUSeconds == nil {
			continue
		}
		u := topCPU{pid: r.PID, seconds: *r.CPUSeconds, at: now}
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

func (t *topScreen) scroll(key string) {
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

// draw shows as much as there is room for.
func (t *topScreen) draw(a *app, fd int, now time.Time) {
	width, height, err := term.GetSize(fd)
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	head := t.head(now)
	t.height = max(1, height-len(head)-2)
	t.scroll("")
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
		case strings.HasPrefix(line, topFailed):
			style, end = "\x1b[31m", "\x1b[m"
		case strings.HasPrefix(line, topSlow):
			style, end = "\x1b[33m", "\x1b[m"
		}
		b.WriteString(style + cutTo(line, width) + end + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J\x1b[" + strconv.Itoa(height) + ";1H" + cutTo(foot, width) + "\x1b[K")
	say(a.stdout, "%s", b.String())
}

// head says how the job stands.
func (t *topScreen) head(now time.Time) []string {
	d := &t.answer
	line := []string{printable.Output(d.RunID) + " (" + printable.Output(d.Name) + ")", printable.Output(string(d.Phase))}
	if d.Reason != "" {
		line = append(line, printable.Output(string(d.Reason)))
	}
	line = append(line, "up "+since(d.StartTime, now), wording.Plural(d.WorldSize, "worker")+" on "+wording.Plural(d.Nodes, "node"),
		"round "+strconv.Itoa(d.Generation), wording.Plural(d.RestartCount, "restart"))
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
	return head
}

// The marks in front of rows: colour is not all that tells them.
const (
	topFailed = "! "
	topSlow   = "~ "
	topOther  = "  "
)

// lines are the head and a table of ranks: as many as are asked for from the first that is shown, all for 0.
func (t *topScreen) lines(now time.Time, most int) []string {
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
	lines = append(lines, fmt.Sprintf("  %5s  %-*s %-12s %9s %9s %6s %8s %4s %7s %9s", "RANK", node, "NODE", "STATE", "STEP", "STEP TIME",
		"CPU", "MEM", "RST",
		"UP", "OUTPUT"))
	for i := range ranks {
		r := &ranks[i]
		mark := topOther
		switch middle.order(r) {
		case 0, 1:
			mark = topFailed
		case 2:
			mark = topSlow
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
			fmt.Sprintf("%s%5d  %-*s %-12s %9s %9s %6s %8s %4d %7s %9s", mark, r.Rank, node, cutTo(printable.Output(r.Node), node),
				printable.Output(string(r.Phase)), step, took, cpu, bytesText(r.ResidentBytes), r.Restarts, up, ago(r.LastOutput, now)))
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

// cutTo cuts a line to a number of characters.
func cutTo(line string, most int) string {
	for i := range line {
		if most == 0 {
			return line[:i]
		}
		most--
	}
	return line
}

package launch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/policy"
	"muster/launch/report"
)

// unknownProgress is how long a group has to run to have come further where neither steps nor checkpoints are told.
const unknownProgress = 10 * time.Minute

// distance is how far a job has come: its greatest step, and the newest checkpoint on disk.
type distance struct{ step, saved *int64 }

// known reports whether anything is known of it.
func (d distance) known() bool { return d.step != nil || d.saved != nil }

// beyond reports whether it is further than before.
func (d distance) beyond(before distance) bool {
	more := func(now, was *int64) bool { return now != nil && (was == nil || *now > *was) }
	return more(d.step, before.step) || more(d.saved, before.saved)
}

// greater is the greater one of two numbers that may be missing.
func greater(a *int64, b int64) *int64 {
	if a != nil && *a >= b {
		return a
	}
	return &b
}

// crashLoop follows whether restarts bring the job further.
type crashLoop struct {
	best  distance // before the group that runs
	began time.Time
	// judged says that further is known of this group, at how far it came.
	judged, further bool
	at              distance
	failed          []attempt
	// expelled says that a node had to leave since the job has come further last.
	expelled bool
}

// attempt is how a group failed.
type attempt struct {
	began           time.Time
	rank            int // -1: of no single one
	node, how, says string
}

// begin takes in that workers start.
func (c *crashLoop) begin(now time.Time) {
	if c.at.known() {
		c.best = c.at
	}
	c.began, c.judged = now, false
}

// further reports whether the job has come further with the workers that run or have failed just now, as far as
// --crash-loop wants to know it. It is also found out for --on-hang exclude.
func (a *Agent) further(ctx context.Context) bool {
	c := &a.loop
	counts := a.Plan.Job.Restart.CrashLoop > 0
	if !counts && !a.Plan.Job.Hang.Exclude {
		return true
	}
	if !c.judged {
		at, back := a.Steering.farthest(context.WithoutCancel(ctx))
		c.judged, c.at = true, at
		switch {
		case back: // steps do not only go up: how far it is cannot be told by them
			c.further = true
		case at.known():
			c.further = at.beyond(c.best)
		default:
			c.further = time.Since(c.began) >= unknownProgress
		}
		c.expelled = c.expelled && !c.further
	}
	return c.further || !counts
}

// farthest is how far the job has come, as far as it is known here. back says that workers here tell steps which do not
// only go up.
func (s *Steering) farthest(ctx context.Context) (d distance, back bool) {
	own := s.Status()
	s.mu.Lock()
	d.saved = s.savedMost
	if s.done.some {
		d.step = greater(nil, s.done.most)
	}
	back = s.done.unclear
	for _, p := range s.places {
		if p.worker == nil {
			continue
		}
		if r, told := p.worker.progress.Read(); told && r.Steps {
			d.step, back = greater(d.step, r.Most), back || r.Back
		}
	}
	board := s.board.Board != nil
	s.mu.Unlock()
	if own.Nodes > 1 && board {
		for _, r := range s.world(ctx, own).Ranks {
			if r.Progress != nil {
				d.step = greater(d.step, r.Progress.Step)
			}
		}
	}
	return d, back
}

// remember keeps how the group failed, to compare it with others. The last word counts.
func (c *crashLoop) remember(f attempt) {
	f.began = c.began
	c.failed = slices.DeleteFunc(c.failed, func(o attempt) bool { return o.began.Equal(f.began) })
	c.failed = append(c.failed, f)
	c.failed = c.failed[max(0, len(c.failed)-mostAttempts):]
}

// mostAttempts is how many failures are compared.
const mostAttempts = 100

// attemptOf is how a group failed by the root cause of its failure.
func attemptOf(f *report.Failure) attempt {
	a := attempt{rank: f.Rank, node: f.Host, how: f.Ending()}
	if at := f.RaisedAt(); at != "" {
		a.how += " at " + at
	}
	a.says = printable.Line(strings.TrimSpace(f.LastWord()), 200)
	return a
}

// describe is an attempt in words, with the node where that is wanted.
func (f attempt) describe(node bool) string {
	text := f.how
	if f.rank >= 0 {
		text = fmt.Sprintf("rank %d by %s", f.rank, f.how)
	}
	if node && f.node != "" {
		text += " on node " + f.node
	}
	if f.says != "" {
		text += " (" + f.says + ")"
	}
	return text
}

// compare says what the newest n failures have in common, and where they differ; empty for less than two.
func (c *crashLoop) compare(n int, nodes bool) string {
	list := c.failed[max(0, len(c.failed)-n):]
	if len(list) < 2 {
		return ""
	}
	var order []string
	times := map[string]int{}
	sameRank, sameNode := true, true
	for _, f := range list {
		text := f.describe(nodes)
		if times[text] == 0 {
			order = append(order, text)
		}
		times[text]++
		sameRank, sameNode = sameRank && f.rank == list[0].rank, sameNode && f.node == list[0].node
	}
	if len(order) == 1 {
		return fmt.Sprintf("all %d attempts failed in the same way: %s", len(list), order[0])
	}
	slices.SortStableFunc(order, func(a, b string) int { return times[b] - times[a] })
	const most = 4
	parts := make([]string, 0, most)
	for _, text := range order[:min(len(order), most)] {
		parts = append(parts, fmt.Sprintf("%d × %s", times[text], text))
	}
	if more := len(order) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more ways", more))
	}
	same := ""
	switch {
	case sameRank && list[0].rank >= 0:
		same = fmt.Sprintf(", always with rank %d", list[0].rank)
	case sameNode && nodes && list[0].node != "":
		same = ", always on node " + list[0].node
	}
	return fmt.Sprintf("%s failed in %d ways%s: %s", wording.Plural(len(list), "attempt"), len(order), same, strings.Join(parts, "; "))
}

// comparison is what the failures of a crash loop have in common, empty for any other end.
func (a *Agent) comparison(d policy.Decision) string {
	if !d.InLoop() {
		return ""
	}
	return a.loop.compare(a.Plan.Job.Restart.CrashLoop+1, !a.meeting.alone())
}

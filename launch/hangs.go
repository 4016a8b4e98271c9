package launch

import "time"

// worldLife is what is known of the silence of a round's nodes, by group rank.
type worldLife struct {
	nodes []heardLife
	stale time.Duration // from when on a note counts no more
}

// heardLife is the last note of a node, and since when it is that.
type heardLife struct {
	note  lifeNote
	since time.Time // zero: there was none
}

// take takes a note that was read.
func (w *worldLife) take(groupRank int, n lifeNote, now time.Time) {
	if h := &w.nodes[groupRank]; h.since.IsZero() || n.Count != h.note.Count {
		*h = heardLife{n, now}
	}
}

// judgement is what the notes of all nodes say together.
type judgement struct {
	silent, quiet time.Duration
	exact         bool
	workers       int
	// quietLimit and stepLimit are the longest time-outs that a node has learned: one whose workers tell their steps,
	// where there is one.
	quietLimit, stepLimit time.Duration
	// absent are the nodes whose word counts no more, unheard those that have said nothing yet: while there is one of
	// these nothing is decided.
	absent, unheard []int
}

// judge says for how long no worker of the job has shown a sign of life: where there are nodes whose workers tell their
// steps, it is those of these nodes. Nodes without workers that run do not count.
func (w *worldLife) judge(now time.Time) (j judgement) {
	var counting []lifeNote
	for i, h := range w.nodes {
		switch {
		case h.since.IsZero():
			j.unheard = append(j.unheard, i)
		case now.Sub(h.since) > w.stale:
			j.absent = append(j.absent, i)
		case h.note.Workers > 0:
			if j.workers == 0 || h.note.Quiet < j.quiet {
				j.quiet = max(0, h.note.Quiet)
			}
			counting = append(counting, h.note)
			j.exact = j.exact || h.note.Exact
			j.workers += h.note.Workers
		}
	}
	first := true
	for _, n := range counting {
		if n.Exact != j.exact {
			continue
		}
		if first || n.Silent < j.silent {
			j.silent = max(0, n.Silent)
		}
		j.quietLimit, j.stepLimit, first = max(j.quietLimit, n.QuietLimit), max(j.stepLimit, n.StepLimit), false
	}
	return j
}

// silence is for how long workers were silent that hang, and by which time-out.
type silence struct {
	silent, limit time.Duration
	// quiet says that there was no sign of life of any kind: who waits for a core is alive then.
	quiet bool
}

// hangs reports whether the workers hang by a time-out, 0 for those that were learned.
func (j judgement) hangs(timeout time.Duration) (silence, bool) {
	known := len(j.unheard) == 0 && j.workers > 0
	switch {
	case timeout > 0:
		return silence{j.silent, timeout, !j.exact}, known && j.silent >= timeout
	case j.quietLimit > 0 && j.quiet >= j.quietLimit:
		return silence{j.quiet, j.quietLimit, true}, known
	default:
		return silence{j.silent, j.stepLimit, false}, known && j.exact && j.stepLimit > 0 && j.silent >= j.stepLimit
	}
}

package launch

import (
	"cmp"
	"context"
	"slices"
	"syscall"

	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/evidence"
	"muster/launch/report"
)

// findHeldUp finds out whom a worker that has failed just now had waited for in vain: those that wait complain, and the
// one that did not come says nothing. It looks once in a round, while that one still runs.
func (a *Agent) findHeldUp(ctx context.Context, w *worker) {
	exit, m := w.proc.Exit(), a.meeting
	if m.soughtHeldUp || m.verdict != nil || w.stopped || exit.Success() || exit.Signal != 0 && exit.Signal != syscall.SIGABRT {
		return
	}
	if f := a.failureNow(ctx, w); !f.WaitedInVain() {
		return
	}
	m.soughtHeldUp = true
	seen, err := a.Steering.lookWorld(context.WithoutCancel(ctx), false) // it bounds itself
	if err != nil {
		a.Log.Debug().Err(err).Msg("the workers could not be looked at that others have waited for")
		return
	}
	if m.heldUp = heldUp(seen); m.heldUp != nil {
		a.Log.Error().Int("rank", m.heldUp.Rank).Str("node", m.heldUp.Node).Str("reason", m.heldUp.Sentence).
			Msg("a rank did not come to what others have waited for")
	}
}

// heldUp is the rank that did not come by what is seen of those that still run, nil where that cannot be told.
func heldUp(seen control.Looked) *report.HeldUp {
	var ranks []evidence.Rank
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		n.Ranks = slices.DeleteFunc(slices.Clone(n.Ranks), func(r evidence.Rank) bool { return r.Ended })
		for _, r := range n.Ranks {
			r.Node = cmp.Or(r.Node, n.Node)
			ranks = append(ranks, r)
		}
	}
	v := diagnose.Of(seen.Nodes, seen.Missing)
	late := v.Culprits
	if len(late) == 0 && v.Kind == diagnose.Nothing && len(ranks) == 1 { // it computes, and nobody else runs any more
		late = []int{ranks[0].Rank}
	}
	if len(late) == 0 {
		return nil
	}
	h := report.HeldUp{Rank: late[0], Sentence: v.Sentence}
	if i := slices.IndexFunc(ranks, func(r evidence.Rank) bool { return r.Rank == h.Rank }); i >= 0 {
		h.Node = ranks[i].Node
	}
	return &h
}

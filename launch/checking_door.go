package launch

import (
	"context"
	"errors"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// guardDoor has this node examined while it waits for a place and others train: what is wrong with it by itself never
// stops them.
func (a *Agent) guardDoor() {
	if keeper, is := a.Handler.(rendezvous.Doorkeeper); is && (a.Checker != nil || a.Plan.Job.Excludes()) {
		keeper.AtDoor(a.examine)
	}
}

// examine is a check of nodes that are in no round. Its error is why this node must not join.
func (a *Agent) examine(ctx context.Context, d rendezvous.Door) error {
	if a.Checker == nil { // nodes come to the door for those that had to leave
		return nil
	}
	round := rendezvous.Round{
		Number: d.Round, GroupRank: d.Rank, GroupWorldSize: d.Size, WorldSize: a.Plan.Procs, RoleWorldSize: a.Plan.Procs,
		MasterAddr: a.Plan.MasterHost(),
	}
	out, err := a.Checker.Check(ctx, CheckInput{
		Round: round, Board: d.Board, Door: true, Standard: d.Standard, Suspect: a.suspect, Tree: a.tree, Dir: a.Plan.Dir,
		Python: a.Plan.Python(),
		Env:    func(localRank int) ([]string, error) { return a.Plan.CheckEnv(round, localRank) },
		Fork:   a.checkForker(),
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil: // it says nothing of this node
		a.Log.Warn().Err(err).Msg("this node was not checked before it joins: that is done in the round")
		return nil
	}
	a.exclude(ctx, out.Excluded, d.Rank == 0)
	for _, f := range out.Faults {
		a.tellFault(ctx, f)
	}
	if out.Status == errhint.OK {
		return nil
	}
	a.atDoor = afterCheck(out)
	return errors.New(a.atDoor.Text)
}

// exclude has the job remember nodes that have to leave. Where that cannot be done they may come back at once.
func (a *Agent) exclude(ctx context.Context, gone []rendezvous.Exclusion, leads bool) {
	keeper, is := a.Handler.(rendezvous.Doorkeeper)
	if !is || len(gone) == 0 {
		return
	}
	if err := keeper.Exclude(context.WithoutCancel(ctx), gone, leads); err != nil {
		a.Log.Warn().Err(err).Msg("nodes that have to leave may come back at once")
	}
}

// rememberExcluded has this node remember one that leaves because a check has excluded it, where the round has ended before
// what the check has found came here: the store may have gone with that node.
func (a *Agent) rememberExcluded() {
	m := a.meeting
	v := m.verdict
	if v == nil || m.checked || v.Kind != rendezvous.Reassemble || v.Status != errhint.Faulty && v.Status != errhint.Straggler ||
		v.Node == "" || v.Node == a.Plan.Hostname {
		return
	}
	m.checked = true
	if keeper, is := a.Handler.(rendezvous.Doorkeeper); is {
		keeper.Remember([]rendezvous.Exclusion{{Node: v.Node, Reason: v.Message}})
	}
}

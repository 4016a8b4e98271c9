package launch

import (
	"context"
	"errors"

	"muster/internal/errhint"
	"muster/launch/report"
	"muster/rendezvous"
)

// PairTester is a Checker that can test this node with nodes of other agents, by a test that these know.
type PairTester interface {
	// OpenPairs starts what does so. An error means that this node cannot be tested.
	OpenPairs(ctx context.Context, in CheckInput) (rendezvous.PairTest, error)
}

// keepPairs has this node take part in the network check of other agents, where the job has one.
func (a *Agent) keepPairs() {
	keeper, is := a.Handler.(rendezvous.PairKeeper)
	tester, tests := a.Checker.(PairTester)
	rules := &a.Plan.Job.Check
	if !is || !tests || !rules.Network {
		return
	}
	keeper.AtPairs(rendezvous.Pairs{
		Strict: rules.ExcludeStraggler, Perf: rules.CommPerf,
		Open: func(ctx context.Context) (rendezvous.PairTest, error) {
			round := rendezvous.Round{
				GroupWorldSize: 1, WorldSize: a.Plan.Procs, RoleWorldSize: a.Plan.Procs, MasterAddr: a.Plan.MasterHost(),
			}
			return tester.OpenPairs(ctx, CheckInput{
				Round: round, Tree: a.tree, Dir: a.Plan.Dir, Python: a.Plan.Python(),
				Env:  func(localRank int) ([]string, error) { return a.Plan.CheckEnv(round, localRank) },
				Fork: a.checkForker(),
			})
		},
	})
}

// paired reports whether the nodes of the round were tested by other agents' check.
func (a *Agent) paired() bool {
	keeper, is := a.Handler.(rendezvous.PairKeeper)
	return is && keeper.Paired()
}

// unfitForPairs is the result of a node that such a check has found unfit, nil for another error.
func (a *Agent) unfitForPairs(ctx context.Context, err error) *Result {
	unfit, is := errors.AsType[*rendezvous.UnfitError](err)
	if !is {
		return nil
	}
	d := afterCheck(CheckOutcome{Status: unfit.Status, Message: "node " + a.Plan.Hostname + " leaves: " + unfit.Reason})
	if unfit.Status != errhint.Undecided {
		a.tellFault(ctx, NodeFault{Node: a.Plan.Hostname, Reason: unfit.Reason, Status: unfit.Status})
	}
	res := a.finish(ctx, report.Outcome{Reason: d.Reason}, *d)
	return &res
}

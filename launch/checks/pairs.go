package checks

import (
	"context"
	"errors"
	"time"

	"muster/launch"
	"muster/netcheck/devicecheck"
	"muster/rendezvous"
)

// pairBudget is what a test with agents of DLRover may take: they give theirs up after 300 s, and may start late.
const pairBudget = 300 * time.Second

var _ launch.PairTester = (*Checker)(nil)

// OpenPairs implements launch.PairTester. As in agents of DLRover there is a process for each worker.
func (c *Checker) OpenPairs(ctx context.Context, in launch.CheckInput) (rendezvous.PairTest, error) {
	c.in = in
	if r := c.config.Rehearsal; r != nil {
		made := r.At(in.Round.Number)
		c.made, c.files = &made, made.Files
	}
	devices, err := c.openDevices(ctx, in, c.plan.Procs, max(pairBudget, c.plan.Job.Check.Budget))
	if err != nil {
		return nil, err
	}
	if err := devices.Ready(ctx); err != nil {
		return nil, errors.Join(err, devices.Close()) //nolint:contextcheck // whatever became of ctx
	}
	return pairTest{devices}, nil
}

// pairTest implements rendezvous.PairTest.
type pairTest struct{ devices *devicecheck.Program }

func (p pairTest) Test(ctx context.Context, g rendezvous.PairGroup) (took float64, err error) {
	return p.devices.DLRover(ctx, devicecheck.Group{Store: g.Store, FirstRank: g.FirstRank, World: g.World})
}

func (p pairTest) Close() error { return p.devices.Close() }

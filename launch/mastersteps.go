package launch

import (
	"context"
	"sync"
	"time"
)

// stepTaker is a rendezvous.Handler whose master wants to know how far the job has come.
type stepTaker interface {
	Progress(step int64, at time.Time)
}

// stepsEvery is how often it is told.
const stepsEvery = 15 * time.Second

// tellSteps tells the master of the handler, if it has one, how far the workers here say that the job has come, until
// the returned function is called: the node with rank 0 does, as DLRover's agents do.
func (a *Agent) tellSteps(ctx context.Context) (stop func()) {
	master, wants := a.Handler.(stepTaker)
	if !wants {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(stepsEvery)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			d := a.Steering.Status()
			for i := range d.Ranks {
				if r := &d.Ranks[i]; r.Rank == 0 && r.Progress != nil && r.Progress.Step > last {
					last = r.Progress.Step
					master.Progress(last, time.Now())
				}
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

package launch

import (
	"context"
	"sync"

	"muster/launch/trainjob"
)

// tellTrainJob tells Kubeflow's Trainer how far the job has come, where it has started this pod, until the returned
// function is called.
func (a *Agent) tellTrainJob() (stop func()) {
	c, found := trainjob.FromEnviron(a.Plan.Job.Environ, a.Log)
	if !found {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { trainjob.Push(ctx, c, a.Steering.Status) })
	return func() {
		cancel()
		wg.Wait()
	}
}

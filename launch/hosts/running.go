package hosts

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"muster/internal/errhint"
)

// Run lets the agents start their workers and waits until the job has ended on all of them. A machine that is lost
// meanwhile is reached again for as long as the others go on. When ctx ends nobody is waited for any more.
func (f *Fleet) Run(ctx context.Context) Outcome {
	f.mu.Lock()
	f.begun = true
	f.mu.Unlock()
	var wg sync.WaitGroup
	for _, n := range f.nodes {
		wg.Go(func() { f.follow(ctx, n) })
	}
	stop := context.AfterFunc(ctx, f.Close)
	wg.Wait()
	stop()
	return f.outcome()
}

// follow looks after one machine until its part is over.
func (f *Fleet) follow(ctx context.Context, n *fleetNode) {
	f.mu.Lock()
	s := n.session
	f.mu.Unlock()
	if s != nil {
		_ = s.wire.send(kindGo, nil) // if it cannot be told, it has ended
	}
	for ctx.Err() == nil {
		if s == nil {
			if s = f.again(ctx, n); s == nil {
				break
			}
		}
		f.await(ctx, n, s)
		s.close()
		if s.result != nil {
			if f.finished(n, s.result); !s.result.Left || !f.awaitReturn(ctx, n) {
				return
			}
			s = nil
			continue
		}
		f.lost(n, s.why)
		s = nil
	}
	f.giveUp(n)
}

// await waits for the end of a session. When the job has ended elsewhere and the node does not, it is ended; but log
// files take the time that they take.
func (f *Fleet) await(ctx context.Context, n *fleetNode, s *session) {
	select {
	case <-s.ended:
		return
	case <-f.ended:
	}
	if f.Linger > 0 {
		f.mu.Lock()
		linger := f.Linger
		switch {
		case f.early:
			linger = min(linger, time.Second)
		case f.hopeless: // their errors may say more
			linger = min(linger, givenUp)
		case f.succeeded: // no worker is being stopped
			linger = max(linger-f.Grace, time.Second)
		}
		f.mu.Unlock()
		for _, wait := range []time.Duration{linger, f.Grace + time.Second} {
			if s.endsWithin(ctx, wait) {
				return
			}
			f.Log.Debug().Str("node", n.Name).Msg("the job has ended, and this node does not: it is asked to")
			go func() { _ = s.signal(syscall.SIGTERM) }() // one that takes nothing is ended in the end
		}
		s.close()
	}
	<-s.ended
}

// endsWithin waits until a session has ended, and reports whether it has. The time does not count in which log files
// come.
func (s *session) endsWithin(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-s.ended:
			return true
		case <-ctx.Done():
			return false
		case <-timer.C:
			if !s.brings() {
				return false
			}
			timer.Reset(BeatEvery)
		}
	}
}

// finished notes a node's result. It ends the job for those that are not there, unless it is about this node alone.
func (f *Fleet) finished(n *fleetNode, r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.result, n.at = r, time.Now()
	if r.aboutJob() && !r.Left {
		f.early = f.early || r.Error != "" && !f.over // what it could not do it tells at once
		f.succeeded = f.succeeded || r.Status == errhint.OK
		f.endLocked()
	}
	f.settleLocked()
}

// awaitReturn waits until a node that has left is wanted again, and reports whether it is.
func (f *Fleet) awaitReturn(ctx context.Context, n *fleetNode) bool {
	select {
	case <-n.back:
		f.mu.Lock()
		defer f.mu.Unlock()
		n.result, n.session = nil, nil
		return true
	case <-f.ended:
	case <-ctx.Done():
	}
	return false
}

// Left is how many nodes have left the job, and are not about to be started again.
func (f *Fleet) Left() (left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		if n.result != nil && n.result.Left && len(n.back) == 0 {
			left++
		}
	}
	return left
}

// Return has up to so many nodes that have left the job be started again, which is to have wants nodes in all, and returns
// their names.
func (f *Fleet) Return(most, wants int) (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		n.wants = 0 // what was wanted before counts no more
		if n.result == nil || !n.result.Left || len(names) >= most {
			continue
		}
		select {
		case n.back <- struct{}{}:
			n.wants = wants
			names = append(names, n.Name)
		default: // it is about to be
		}
	}
	return names
}

func (f *Fleet) endLocked() {
	if !f.over {
		f.over, f.first = true, time.Now()
		close(f.ended)
	}
}

// lost notes that an agent is gone without a result.
func (f *Fleet) lost(n *fleetNode, why error) {
	if f.Lost != nil {
		f.Lost(n.index)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.session, n.err = nil, why
	if !f.over && !f.let {
		f.Log.Error().Err(why).Str("node", n.Name).Msg("node lost")
	}
	f.settleLocked()
}

// giveUp notes that a machine is not tried any more.
func (f *Fleet) giveUp(n *fleetNode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.out = true
	f.settleLocked()
}

// settleLocked ends the job when no node is left that runs it, and when those that run it or may come back are too few
// for it: they would wait for machines that nobody tries to reach any more.
func (f *Fleet) settleLocked() {
	running, possible := 0, 0
	for _, n := range f.nodes {
		if n.result == nil && !n.out {
			possible++
			if n.session != nil {
				running++
			}
		}
	}
	switch {
	case running == 0:
		f.endLocked()
	case possible < f.Min && f.begun && !f.over && !f.let:
		f.hopeless = true
		if gone := f.goneLocked(); len(gone) > 0 {
			f.Log.Error().Int("nodes", possible).Int("needed", f.Min).Strs("gone", gone).Msg("too few nodes are left for the job: it ends")
		}
		f.endLocked()
	}
}

// goneLocked are the machines that were given up, and those that have left the job while it was to go on.
func (f *Fleet) goneLocked() []string {
	var names []string
	for _, n := range f.nodes {
		if n.out || n.result != nil && n.result.Status != errhint.TryAgain {
			names = append(names, n.Name)
		}
	}
	return names
}

// again reaches a lost machine for as long as the job goes on elsewhere, and brings it into the job. It returns nil
// where that has come to nothing.
func (f *Fleet) again(ctx context.Context, n *fleetNode) *session {
	ctx, cancel := context.WithTimeoutCause(ctx, f.StartTimeout, errStartTimeout)
	defer cancel()
	go func() {
		select {
		case <-f.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		f.reach(ctx, n)
		f.mu.Lock()
		s, err := n.session, n.err
		f.mu.Unlock()
		if s == nil {
			if ctx.Err() == nil || errors.Is(context.Cause(ctx), errStartTimeout) {
				f.Log.Warn().Err(err).Str("node", n.Name).Msg("the job goes on without this node")
			}
			return nil
		}
		_, err = f.prepare(ctx, n)
		if err == nil {
			err = s.wire.send(kindGo, nil)
		}
		if err == nil {
			f.Log.Info().Str("node", n.Name).Msg("the node is there again, and joins the job")
			return s
		}
		s.close()
		f.lost(n, err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

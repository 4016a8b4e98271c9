package launch

import (
	"sync"
	"time"
)

// lease is until when the workers of a round may run, as the other nodes grant it: after that they may go on without
// this one. It is not renewed once it has ended.
type lease struct {
	over chan struct{} // closed when it has ended

	mu    sync.Mutex
	until time.Time // zero: it is not limited
}

// endedBefore reports whether the lease had ended at a time.
func (l *lease) endedBefore(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.until.IsZero() && t.After(l.until)
}

func (l *lease) renew(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = until
}

// keepLease sees to it that the workers of the round do not outlive what the other nodes grant them; the guardian does
// where this process stands still.
func (a *Agent) keepLease() (end func()) {
	l := &lease{over: make(chan struct{})}
	a.meeting.lease = l
	leases, ended := a.Handler.Lease(), make(chan struct{})
	if leases == nil {
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer a.tree.SetLease(time.Time{})
		var over <-chan time.Time
		for {
			select {
			case until := <-leases:
				if over = nil; l.endedBefore(time.Now()) { // this process stood still, and the guardian has killed them
					over = time.After(0)
					continue
				}
				l.renew(until)
				a.tree.SetLease(until)
				if !until.IsZero() {
					over = time.After(time.Until(until))
				}
			case <-over:
				close(l.over)
				a.killGroup()
				<-ended
				return
			case <-ended:
				return
			}
		}
	})
	return func() { close(ended); wg.Wait() }
}

// killGroup ends the workers that run, with all that has stayed with them, at once, for their lease is over.
func (a *Agent) killGroup() {
	a.groupMu.Lock() // whoever is being started is killed, too
	defer a.groupMu.Unlock()
	if a.group == nil {
		return
	}
	if len(a.group.running()) > 0 {
		a.Log.Warn().Msg("not heard of by the other nodes, which may go on without this one: its workers are killed")
	}
	a.group.kill()
}

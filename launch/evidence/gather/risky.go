package gather

import (
	"context"
	"sync/atomic"
)

// mostStuck is how many goroutines may be left behind in calls that a file system does not answer. Each keeps a thread
// until it does.
const mostStuck = 16

var stuck atomic.Int64

// risky calls f, which may wait for a file system for ever, and reports whether it has returned before ctx ended. Else
// f goes on: what it writes to is its own from then on.
func risky(ctx context.Context, f func()) bool {
	if ctx.Err() != nil || stuck.Load() >= mostStuck {
		return false
	}
	stuck.Add(1)
	done := make(chan struct{})
	go func() {
		defer stuck.Add(-1)
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

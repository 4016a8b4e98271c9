package checkpointd

import (
	"context"
	"sync"
	"time"
)

// pace keeps the writing of checkpoints to so many bytes a second, for all files of a node together. nil: as fast as it
// goes.
type pace struct {
	rate int64

	mu   sync.Mutex
	free time.Time // when what was written before has had its time
}

// maxPace bounds what one piece of a file may take.
const maxPace = time.Hour

// newPace returns nil for a rate of 0.
func newPace(rate int64) *pace {
	if rate <= 0 {
		return nil
	}
	return &pace{rate: rate}
}

// take waits until n bytes may be written, or ctx ends.
func (p *pace) take(ctx context.Context, n int64) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(min(float64(n)/float64(p.rate), maxPace.Seconds()) * float64(time.Second)))
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

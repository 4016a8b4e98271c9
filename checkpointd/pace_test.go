package checkpointd

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestPace: writing takes the time that the rate gives it, whoever writes, and ends with its context.
func TestPace(t *testing.T) {
	p := newPace(10 << 20)
	began := time.Now()
	errs := make(chan error)
	for range 4 {
		go func() {
			var err error
			for range 3 {
				err = errors.Join(err, p.take(t.Context(), 256<<10))
			}
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took < 11*25*time.Millisecond { // the last of twelve pieces begins after eleven
		t.Errorf("3 MiB took %v at 10 MiB/s", took)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDied)
	if err := newPace(1).take(ctx, 1<<40); err != nil && !errors.Is(err, errDied) {
		t.Error(err)
	}
	slow := newPace(1)
	_ = slow.take(t.Context(), 1<<10)
	if err := slow.take(ctx, 1); !errors.Is(err, errDied) {
		t.Errorf("waited to the end: %v", err)
	}
	if err := newPace(0).take(t.Context(), 1<<60); err != nil {
		t.Error(err)
	}
}

package checkpointd

import (
	"context"
	"errors"
	"testing"
	"time"

	"muster/internal/testutil"
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

// TestRate: the files of all ranks share the rate of their node, and a save does not wait for them.
func TestRate(t *testing.T) {
	testutil.Long(t)
	const size, rate = 12 << 20, 16 << 20
	dir := t.TempDir()
	s, log := testService(t, func(c *Config) { c.Rate = rate })
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	began := time.Now()
	a.save(1, 0, size, true)
	b.save(1, 1, size, true)
	a.save(2, 0, size, false)
	b.save(2, 1, size, false)
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	const least = (2*size - pieceSize) * time.Second / rate // the last piece begins when those before have had their time
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes were on disk after %v at %d bytes a second: %s", 2*size, took, rate, log.String())
	}
	steps, err := List(dir)
	if err != nil || len(steps) != 1 || steps[0].Step != 1 || steps[0].Verify() != nil {
		t.Errorf("%v: %v", steps, err)
	}
}

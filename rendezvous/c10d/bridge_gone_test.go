package c10d_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/c10d"
	"muster/rendezvous/memstore"
)

// slowWaits is a store whose answers to Wait come after the end of its other connections was seen.
type slowWaits struct {
	*memstore.Client
	once sync.Once
	lost chan struct{} // closed with that end
}

func (s *slowWaits) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	value, err := s.Client.CompareAndSet(ctx, key, expected, desired)
	if errors.Is(err, rendezvous.ErrStoreClosed) {
		s.once.Do(func() { close(s.lost) })
	}
	return value, err
}

func (s *slowWaits) Wait(ctx context.Context, keys ...string) error {
	if err := s.Client.Wait(ctx, keys...); err != nil {
		return err
	}
	select {
	case <-s.lost:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// TestBridgeStoreGoes: an agent of torchrun serves the store, and takes it along. Where everybody has passed the exit
// barrier before, nothing is amiss: neither that the barrier's answer comes after the end of the store, nor that nobody
// is left who could be told that the job has ended.
func TestBridgeStoreGoes(t *testing.T) {
	for name, passes := range map[string]bool{"behind the barrier": true, "before it": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, 3, func(c *crowd) {
				slow := &slowWaits{Client: c.space.Client(), lost: make(chan struct{})}
				b, p := c.group(func(cfg *c10d.BridgeConfig) { cfg.Store = slow }, "a", "b"), c.peer("m")
				together(func() { b.mustJoin() }, func() { p.join(); p.brings(1) })
				p.live()
				var err error
				together(func() { err = b.Barrier(c.ctx, b.who, b.changed) }, func() {
					time.Sleep(time.Minute)
					if passes {
						p.say("torchelastic/agent/terminal_state/last_member", "x")
					}
					p.stop()
					c.space.Close()
				})
				if passes && err != nil || !passes && !errors.Is(err, rendezvous.ErrStoreClosed) {
					t.Errorf("Barrier: %v", err)
				}
				if err := b.Close(c.ctx); passes && err != nil || !passes && !errors.Is(err, rendezvous.ErrStoreClosed) {
					t.Errorf("Close: %v", err)
				}
			})
		})
	}
}

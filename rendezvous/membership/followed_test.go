package membership_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// slowReader is a connection that stands still before it asks for the coordinator of a term, until goes is closed.
type slowReader struct {
	*memstore.Client
	stands atomic.Bool
	goes   chan struct{}
}

func (s *slowReader) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if strings.Contains(key, "coordinator") && s.stands.CompareAndSwap(false, true) {
		select {
		case <-s.goes:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s.Client.CompareAndSet(ctx, key, expected, desired)
}

// TestFollowsWhoLedBefore: a node reads which term it is, and then whose that is. In between another node has the next
// term, and the first coordinator lives, without a term. The node must not ask that one for ever.
func TestFollowsWhoLedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		j.cfg.JoinTimeout = 10 * time.Minute
		var out atomic.Bool
		a := j.start("a", func(c *membership.Config) {
			c.Store, c.Durable = &wire{Client: j.space.Client(), cuts: []*atomic.Bool{&out}}, true
		})
		durable := func(c *membership.Config) { c.Durable = true }
		first := a.begin(t.Context())
		synctest.Wait() // a is the coordinator
		b := j.start("b", durable)
		second := b.begin(t.Context())
		<-first
		<-second
		slow := &slowReader{Client: j.space.Client(), goes: make(chan struct{})}
		c := j.start("c", durable, func(c *membership.Config) { c.Store = slow })
		third := c.begin(t.Context())
		synctest.Wait()
		if !slow.stands.Load() {
			t.Fatal("c has not asked for the coordinator")
		}
		out.Store(true)
		b.verdict()
		second = b.begin(t.Context())
		time.Sleep(time.Minute)
		out.Store(false)
		a.verdict()
		first = a.begin(t.Context())
		<-first
		<-second
		close(slow.goes)
		for _, x := range []*agent{a, b} {
			if v := x.verdict(); v.Reason != "ScaleUp" {
				t.Errorf("%s: %+v, want a round with c", x.name, v)
			}
		}
		meet(t.Context(), a, b)
		if n := <-third; n.err != nil || n.round.GroupWorldSize != 3 {
			t.Errorf("c: %+v, %v", n.round, n.err)
		}
	})
}

package c10d_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/c10d"
	"muster/rendezvous/memstore"
)

// crowd is a store in memory with bridges, and peers that stand for agents of torchrun. It runs in a bubble, where time
// costs nothing, and where whatever a method leaves running fails the test.
type crowd struct {
	*testing.T
	space *memstore.Space
	store rendezvous.Store
	ctx   context.Context
	set   c10d.Settings
	log   testutil.Buffer
}

// bubble runs f with a crowd whose rounds have minNodes to maxNodes nodes.
func bubble(t *testing.T, minNodes, maxNodes int, f func(c *crowd)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as all of the tests of membership, where the reason stands
	outer := t
	synctest.Test(t, func(t *testing.T) {
		space := memstore.NewSpace()
		set := c10d.DefaultSettings(minNodes, maxNodes)
		set.LastCall = 5 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		c := &crowd{T: t, space: space, store: space.Client(), ctx: ctx, set: set}
		defer func() {
			if t.Failed() || outer.Failed() {
				t.Log(c.log.String())
			}
		}()
		f(c)
	})
}

// group is a bridge and its nodes.
type group struct {
	*c10d.Bridge
	*crowd
	peers   []c10d.Peer
	changed chan struct{}
}

// group makes a bridge for nodes, each with as many workers as its place says, from 1 on.
func (c *crowd) group(change func(*c10d.BridgeConfig), names ...string) *group {
	c.Helper()
	cfg := c10d.BridgeConfig{Store: c.space.Client(), RunID: "job", Settings: c.set, Log: zerolog.New(&c.log)}
	if change != nil {
		change(&cfg)
	}
	b, err := c10d.NewBridge(cfg)
	if err != nil {
		c.Fatal(err)
	}
	b2 := &group{Bridge: b, crowd: c, changed: make(chan struct{}, 1)}
	for i, name := range names {
		b2.peers = append(b2.peers, c10d.Peer{Node: named(name), Role: "default", LocalWorldSize: i + 1})
	}
	return b2
}

func (b *group) who() []c10d.Peer { return b.peers }

func (b *group) master(_ context.Context, f c10d.Peer, served bool) (string, int, error) {
	// Port by name: addresses are looked up, and there is no network in a bubble.
	port := 100 * int(f.Node.Addr[0])
	if !served {
		port++
	}
	return "127.0.0.1", port, nil
}

func (b *group) join() (c10d.Joined, error) {
	return b.Join(b.ctx, b.who, b.changed, b.master)
}

func (b *group) mustJoin() c10d.Joined {
	b.Helper()
	j, err := b.join()
	if err != nil {
		b.Errorf("%v\n%s", err, b.log.String())
	}
	return j
}

func (b *group) stay() (string, error) { return b.Stay(b.ctx, b.who, b.changed) }

// together runs all of f at the same time and waits for them.
func together(f ...func()) {
	done := make(chan struct{})
	for _, f := range f {
		go func() {
			defer func() { done <- struct{}{} }()
			f()
		}()
	}
	for range f {
		<-done
	}
}

// peer is an agent of torchrun as far as a test needs one: it moves as Step does, and says in a round what the test
// wants.
type peer struct {
	*crowd
	stop  func() // ends what keeps it alive
	node  c10d.Node
	seen  *c10d.Observer
	round c10d.Round
	from  time.Time
}

func (c *crowd) peer(name string) *peer {
	return &peer{crowd: c, node: named(name), seen: c10d.NewObserver(c.set, named(name)), from: time.Now()}
}

const stateKey = "/torch.rendezvous.job"

// until takes steps towards want until one of them is action, and returns that decision.
func (p *peer) until(ctx context.Context, want c10d.Want, action c10d.Action) (c10d.Decision, error) {
	deadline := p.set.Deadline(want, time.Since(p.from))
	text, err := p.store.CompareAndSet(ctx, stateKey, nil, []byte(c10d.NoState))
	for {
		if err != nil {
			return c10d.Decision{}, err
		}
		state, err2 := c10d.Decode(text)
		if err2 != nil {
			return c10d.Decision{}, err2
		}
		now := c10d.Instant{Mono: time.Since(p.from), Wall: time.Now()}
		p.seen.Observe(state, now)
		d := c10d.Step(c10d.Input{
			State: state, Members: []c10d.Node{p.node}, Settings: p.set, Now: now, Want: want, Deadline: deadline, Round: p.round,
			Seen: p.seen,
		})
		deadline = d.Deadline
		switch {
		case d.Action == action:
			return d, nil
		case d.State != nil:
			desired, err := c10d.Encode(d.State)
			if err != nil {
				return d, err
			}
			text, err = p.store.CompareAndSet(ctx, stateKey, text, desired)
			if err != nil {
				return d, err
			}
			continue
		case d.Action != c10d.ActionSync:
			return d, fmt.Errorf("%s decides %q (%s)", p.node, d.Action, d.Reason)
		}
		select {
		case <-time.After(d.Wait):
		case <-ctx.Done():
			return d, ctx.Err()
		}
		text, err = p.store.Get(ctx, stateKey)
	}
}

// join takes part in a round and says nothing in it.
func (p *peer) join() {
	p.Helper()
	if _, err := p.until(p.ctx, c10d.WantExit, c10d.ActionFinish); err != nil {
		p.Error(err)
	}
	d, err := p.until(p.ctx, c10d.WantJoin, c10d.ActionFinish)
	if err != nil {
		p.Error(err)
	}
	p.round = d.Round
}

// live keeps the peer alive until stop is called, or the round ends.
func (p *peer) live() {
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.until(ctx, c10d.WantStay, c10d.ActionNewRound)
	}()
	p.stop = func() { cancel(); <-done }
}

// say sets a key of the peer's round.
func (p *peer) say(key, value string) {
	p.Helper()
	if err := p.store.Set(p.ctx, p.key(key), []byte(value)); err != nil {
		p.Error(err)
	}
}

func (p *peer) key(key string) string { return fmt.Sprintf("%s.%d/%s", stateKey, p.round.Number, key) }

func (p *peer) hear(key string) string {
	p.Helper()
	value, err := p.store.Get(p.ctx, p.key(key))
	if err != nil {
		p.Error(err)
	}
	return string(value)
}

// brings says that the peer has n workers.
func (p *peer) brings(n int) {
	p.Helper()
	p.say(fmt.Sprintf("torchelastic/role_info/%d", p.round.Rank),
		fmt.Sprintf(`{"role": "default", "rank": %d, "local_world_size": %d}`, p.round.Rank, n))
}

package c10d

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"muster/rendezvous"
)

// Barrier enters the exit barrier with all of ours, whose workers have all succeeded, and returns nil when every agent
// of the round has entered it. Ours are kept alive meanwhile. When the round ends instead, because a worker of others
// has failed for instance, that is a *RoundOverError; when an agent closes the rendezvous, ErrClosed. It may be called
// again in the same round.
func (b *Bridge) Barrier(ctx context.Context, peers func() []Peer, changed <-chan struct{}) error {
	r := b.joined
	if r == nil {
		return errors.New("cannot enter the exit barrier: no round was joined")
	}
	b.tell(progress{phase: phaseBarrier})
	enter := b.enterBarrier
	if r.legacy {
		enter = b.enterOldBarrier
	}
	if !r.entered {
		if err := enter(ctx); err != nil {
			return fmt.Errorf("cannot enter the exit barrier: %w", err)
		}
		r.entered = true
	}
	err := b.meanwhile(ctx, &goal{peers: peers, changed: changed, excused: b.finished}, func(ctx context.Context) error {
		return b.cfg.Store.Wait(ctx, r.exit()...)
	})
	if errors.Is(err, ErrClosed) {
		// Whoever has passed closes the rendezvous: then we only come late.
		x := exchange{store: b.cfg.Store, timeout: b.cfg.ReadTimeout}
		if passed, err2 := x.has(ctx, r.prefix+keyPassed); err2 == nil && passed {
			err = nil
		}
	}
	r.passed = err == nil
	return err
}

// enterBarrier counts all of ours at once. Whoever counts the last agent lets all others pass.
func (b *Bridge) enterBarrier(ctx context.Context) error {
	ctx, cancel := answer(ctx, b.cfg.ReadTimeout)
	defer cancel()
	n, err := b.cfg.Store.Add(ctx, b.joined.prefix+keyBarrier, int64(len(b.joined.peers)))
	if err == nil && n == int64(len(b.joined.order)) {
		err = b.cfg.Store.Set(ctx, b.joined.prefix+keyPassed, []byte("<val_ignored>"))
	}
	return err
}

// enterOldBarrier is that of 1.13 to 2.3: everybody writes a key and reads those of all, and then says that it has.
func (b *Bridge) enterOldBarrier(ctx context.Context) error {
	x := exchange{store: b.cfg.Store, timeout: b.cfg.ReadTimeout, round: b.joined}
	var pairs []rendezvous.Pair
	for rank, n := range b.joined.order {
		if _, ours := b.joined.peers[n]; ours {
			pairs = append(pairs,
				rendezvous.Pair{Key: b.joined.key(keyOldBarrier, rank), Value: []byte(strconv.Itoa(rank))},
				rendezvous.Pair{Key: b.joined.key(keyOldBarrier, rank) + fin, Value: []byte("FIN")})
		}
	}
	return x.setAll(ctx, pairs)
}

// finished returns how many agents of torchrun are in the exit barrier of the round.
func (b *Bridge) finished(ctx context.Context) (int, error) {
	r := b.joined
	if r.others() == 0 {
		return 0, nil
	}
	ctx, cancel := answer(ctx, b.cfg.ReadTimeout)
	defer cancel()
	if r.legacy {
		x, n := exchange{store: b.cfg.Store, timeout: b.cfg.ReadTimeout, round: r}, 0
		for rank, node := range r.order {
			if _, ours := r.peers[node]; ours {
				continue
			}
			there, err := x.has(ctx, b.joined.key(keyOldBarrier, rank))
			if err != nil {
				return 0, err
			}
			if there {
				n++
			}
		}
		return n, nil
	}
	n, err := b.cfg.Store.Add(ctx, r.prefix+keyBarrier, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot count the agents in the exit barrier: %w", err)
	}
	if r.entered {
		n -= int64(len(r.peers))
	}
	return int(max(0, min(n, int64(r.others())))), nil
}

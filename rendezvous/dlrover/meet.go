package dlrover

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// meet joins the master's next round and waits until it is complete, with this node in it. As often as agents of DLRover
// wait for a network check it goes there before: with that the master forgets who waits for a round.
func (h *Handler) meet(ctx context.Context, workers int) (w world, err error) {
	wait := h.pairsWait
	for {
		n, err := wait(ctx)
		if err != nil {
			return w, err
		}
		if n > 0 {
			if err := h.pair(ctx, workers); err != nil {
				return w, err
			}
		}
		joined, err := h.join(ctx, workers)
		if err != nil {
			return w, err
		}
		w, again, err := h.await(ctx, workers, joined)
		if err != nil || !again {
			return w, err
		}
		wait = h.checking
	}
}

// join joins the master's next round, and returns after which one.
func (h *Handler) join(ctx context.Context, workers int) (after int, err error) {
	w, err := h.world(ctx)
	if err != nil {
		return 0, err
	}
	if err := h.sayParams(ctx); err != nil {
		return 0, err
	}
	if err := h.sayHello(ctx, w.round); err != nil { // before the master knows of us: whoever sees the round sees this
		return 0, err
	}
	return w.round, h.c.insist(ctx, func(ctx context.Context) error { return h.c.join(ctx, training, h.cfg.NodeRank, workers) })
}

// await waits until the round after joined is complete, with this node in it; again says that there is a network check
// before.
func (h *Handler) await(ctx context.Context, workers, joined int) (w world, again bool, err error) {
	began, told, pending := time.Now(), time.Now(), time.Time{}
	for look := shortestLook; ; look = min(look*3/2, longestLook) {
		if err := sleep(ctx, look); err != nil {
			return w, false, err
		}
		if w, err = h.world(ctx); err != nil {
			return w, false, err
		}
		if w.index(h.cfg.NodeRank) >= 0 && w.round > joined {
			return w, false, nil
		}
		if n, err := h.checking(ctx); err != nil || n > 0 {
			return w, n > 0, err
		}
		if w.round > joined && len(w.nodes) > 0 {
			told = time.Now() // a join takes the round away from nodes of it that have not seen it yet
		}
		tell := time.Since(told) >= tellEvery || time.Since(began) >= h.cfg.JoinTimeout
		if joined, err = h.stillWait(ctx, w, workers, joined, tell); err != nil {
			return w, false, err
		}
		if len(w.nodes) > 0 {
			began, pending = time.Now(), cmp.Or(pending, time.Now())
			if h.cfg.PendTimeout > 0 && time.Since(pending) > h.cfg.PendTimeout {
				return w, false, h.notMet(ctx, "pend-timeout",
					fmt.Sprintf("this node was in no round for %v", h.cfg.PendTimeout), morePending)
			}
		}
		if !tell {
			continue
		}
		why, over := h.missing(ctx)
		switch {
		case over != nil:
			return w, false, over
		case time.Since(began) >= h.cfg.JoinTimeout:
			return w, false, h.notMet(ctx, "join-timeout",
				fmt.Sprintf("no round was complete within %v: %s", h.cfg.JoinTimeout, why), moreTime)
		}
		told = time.Now()
		h.cfg.Log.Warn().Dur("dur_ms", time.Since(began)).Msg("waiting for other nodes at the master: " + why)
	}
}

// stillWait has this node wait for the round after w, which it is not in, and returns after which one it waits. Where
// nodes are gathered for the next one already, nobody knows whether this one still waits, or was in w: it joins once
// more, which changes nothing for one that waits. So it does at a master that has begun anew: that counts rounds from 0
// again, or has not heard of this node, which is asked where others train without it. And it does where look says so,
// as the master may have forgotten it alone: an agent that joins a network check clears those who wait for a round.
func (h *Handler) stillWait(ctx context.Context, w world, workers, joined int, look bool) (after int, err error) {
	anew := look || w.round < joined || w.round != joined && len(w.nodes) == 0
	if !anew && len(w.nodes) > 0 {
		anew, err = h.forgotten(ctx, helloKey(h.cfg.NodeRank, joined))
	}
	switch {
	case err != nil || !anew && w.round == joined:
		return joined, err
	case anew:
		return h.join(ctx, workers)
	}
	return w.round, h.sayHello(ctx, w.round)
}

// forgotten reports whether the master does not know any more what this node has said under a key.
func (h *Handler) forgotten(ctx context.Context, key string) (bool, error) {
	var said []byte
	err := h.c.insist(ctx, func(ctx context.Context) (err error) {
		said, err = h.c.lookUp(ctx, key)
		return err
	})
	return len(said) == 0, err
}

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
		if w.round != joined { // a round has begun without us
			if joined, err = h.joinAgain(ctx, w, workers); err != nil {
				return w, false, err
			}
		}
		if len(w.nodes) > 0 {
			began, pending = time.Now(), cmp.Or(pending, time.Now())
			if h.cfg.PendTimeout > 0 && time.Since(pending) > h.cfg.PendTimeout {
				return w, false, h.notMet(ctx, "pend-timeout",
					fmt.Sprintf("this node was in no round for %v", h.cfg.PendTimeout), morePending)
			}
		}
		if time.Since(told) < tellEvery && time.Since(began) < h.cfg.JoinTimeout {
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

// joinAgain waits for the round after w, which this node is not in. Where nodes are gathered for that already, nobody
// knows whether this one still waits, or was in w: it joins once more, which changes nothing for one that waits.
func (h *Handler) joinAgain(ctx context.Context, w world, workers int) (after int, err error) {
	if len(w.nodes) == 0 {
		return h.join(ctx, workers)
	}
	return w.round, h.sayHello(ctx, w.round)
}

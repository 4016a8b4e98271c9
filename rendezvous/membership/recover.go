package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"muster/internal/errhint"
)

// recover gets back to a store after the last session was lost.
func (h *Handler) recover(ctx context.Context, cause error) error {
	if lost, ok := errors.AsType[*lostError](cause); ok && lost.fatal {
		return errhint.Code(fmt.Errorf("cannot go on at %s: %w", h.cfg.Place, lost.why), errhint.TryAgain)
	}
	switch {
	case h.cfg.Durable:
		if h.round != nil && h.round.s == h.session { // else we wait for it already
			h.log.Warn().Err(cause).Msg("store lost; waiting for it")
		}
		return nil // its connection mends itself, and the next session waits for it
	case h.movable() && h.round != nil && h.round.cut && len(h.last.Standbys) > 0:
		return h.elect(ctx, cause)
	}
	// An agent that has left its round already does not know whether a larger one has begun without it, most of which
	// may be elsewhere: it has no vote.
	return h.goBack(ctx, cause)
}

// goBack reaches the store again, or finds where it has moved.
func (h *Handler) goBack(ctx context.Context, cause error) error {
	give := func(err error) error {
		err = fmt.Errorf("cannot go on without %s: %w", h.cfg.Place, err)
		return errhint.Code(errhint.With(err, "start the job again, on every node"), errhint.TryAgain)
	}
	if h.cfg.Dial == nil || h.cfg.At == "" {
		return give(cause)
	}
	if h.last.Round >= 0 { // whoever waits for a first round has until the join timeout
		var cancel context.CancelFunc
		limit := 4 * h.cfg.deadAfter()
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w; given up after %v", cause, limit))
		defer cancel()
	}
	h.log.Warn().Err(cause).Msg("store lost; looking for it")
	_ = h.conn.Close()
	h.mu.Lock()
	places := []standby{{Addr: h.cfg.At}}
	for _, p := range slices.Concat(h.standbys, h.last.Standbys) {
		if !slices.ContainsFunc(places, func(other standby) bool { return other.Addr == p.Addr }) {
			places = append(places, p)
		}
	}
	h.mu.Unlock()
	for wait := h.cfg.lookEvery(); ; wait = h.cfg.beatEvery() { // a place that takes us and drops us is not asked at once
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), cause) {
				return give(context.Cause(ctx))
			}
			return context.Cause(ctx)
		}
		if conn, p := h.firstOf(ctx, places); conn != nil {
			asking, cancel := context.WithTimeout(ctx, h.cfg.deadAfter())
			if full := whyFull(asking, conn); full != "" {
				h.log.Error().Str("addr", p.Addr).Str("reason", full).
					Msg("the store had no room, and closes who adds to it then. --store-limit gives it more, --store-allow keeps " +
						"strangers out")
			}
			cancel()
			if h.conn = newRecords(conn, h.codec); p.Addr != h.cfg.At {
				h.host, h.cfg.At, h.cfg.Place = p.Agent, p.Addr, "the store of "+p.Node
			}
			return nil
		}
	}
}

// firstOf reaches the first of places at which a store answers, nil for none. They are tried at once, since each that
// is out of reach takes its time. Where the store was last it may have been made anew, elsewhere somebody must serve it
// for this job.
func (h *Handler) firstOf(ctx context.Context, places []standby) (Conn, standby) {
	conns := make([]chan Conn, len(places))
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, p := range places {
		conns[i] = make(chan Conn, 1)
		go func() {
			var conn Conn
			var err error
			if p.Addr == h.cfg.At {
				dialing, cancel := context.WithTimeout(trying, h.cfg.deadAfter())
				defer cancel()
				conn, err = h.cfg.Dial(dialing, p.Addr)
			} else {
				conn, err = h.seek(trying, p.Addr)
			}
			if err != nil {
				conn = nil
			}
			conns[i] <- conn
		}()
	}
	var first Conn
	var at standby
	for i, c := range conns {
		switch conn := <-c; {
		case conn == nil:
		case first == nil:
			first, at = conn, places[i]
			cancel()
		default:
			_ = conn.Close()
		}
	}
	return first, at
}

// seek reaches the lost store again, where it is served again.
func (h *Handler) seek(ctx context.Context, at string) (Conn, error) {
	if at == "" {
		return nil, errors.New("the store has no address")
	}
	dialing, cancel := context.WithTimeout(ctx, h.cfg.deadAfter())
	defer cancel()
	conn, err := h.cfg.Dial(dialing, at)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, h.cfg.deadAfter()) // another connection, and a question: four round trips
	defer cancel()
	if !Hosted(asking, conn, h.cfg.RunID, h.cfg.Token) {
		return nil, errors.Join(errors.New("no store there"), conn.Close())
	}
	return conn, nil
}

// seekAgain seeks the lost store until it is served again, with a pause after each try; nil where ctx ends before.
func (h *Handler) seekAgain(ctx context.Context, at string, pause time.Duration) Conn {
	for ctx.Err() == nil {
		if conn, err := h.seek(ctx, at); err == nil {
			return conn
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

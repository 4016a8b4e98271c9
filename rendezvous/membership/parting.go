package membership

import "context"

// An agent that serves the store and has the leadership may be told to stop between two rounds, when there is no verdict
// by which it could say so. Then its last heartbeat says which round it has begun last. Who was in that one knows that
// no other has begun without it, keeps its vote, and counts no lost node; it says that it has heard, once its workers
// have ended, and the store goes when all have.

// part ends this coordinator's time between two rounds: it begins none any more. It returns the agents of the last round
// that live, nil where there was none, one runs, or the job is over.
func (c *coordinator) part(ctx context.Context) map[string]bool {
	parted := make(chan map[string]bool, 1)
	err := c.tell(ctx, func() {
		var members map[string]bool
		r := c.roster
		if d := c.decisionOn(roundID{r.round, c.nonces[r.round]}); d != nil && r.phase == phaseRun {
			select {
			case <-d.made: // which is on its way to us
				r.end(d.verdict)
			default:
			}
		}
		if r.phase == phaseGather && r.last == r.round && c.ledger.lastRound() != "" && !r.mixed {
			r.leaving, members = true, map[string]bool{}
			for agent, m := range r.members {
				members[agent] = !m.gone
			}
		}
		parted <- members
	})
	if err != nil {
		return nil
	}
	select {
	case members := <-parted:
		return members
	case <-c.done:
	case <-ctx.Done():
	}
	return nil
}

// lastRound is the nonce of the last round that we have begun, "" for none.
func (l *ledger) lastRound() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.round
}

// parts says that this agent leaves, which serves the store and has the leadership, between two rounds, and lets those of
// the last round leave first. It reports false where it does not stand so.
func (h *Handler) parts(ctx context.Context, s *session) bool {
	if h.coord == nil || h.host != h.id || h.over || h.leaving {
		return false
	}
	members := h.coord.part(ctx)
	if members == nil {
		return false
	}
	s.mu.Lock()
	s.parting = true
	s.mu.Unlock()
	select {
	case s.nudge <- struct{}{}:
	default:
	}
	h.coord.othersGone(ctx, func(agent string) bool { return members[agent] })
	return true
}

// parting reports whether it is of a coordinator that waits for those of the last round to leave. Nobody else follows it
// as coordinator: it would not hear of them any more.
func (b *beat) parting() bool { return b.Left && b.Term != nil }

// partedByLocked takes in that the coordinator has left, and which round it had begun last.
func (s *session) partedByLocked(who string, last beat) {
	s.parted = s.parted || last.Left && who == s.host && last.Round != "" && last.Round == s.lastNonce
}

// hostParts reports whether the host of the store has said that it leaves, and no round begins before it has left.
func (h *Handler) hostParts() bool {
	if h.round == nil || h.hostLeft {
		return false
	}
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return h.round.handover || h.session.parted
}

// awaitParting says that the workers of this node have ended, and waits until the host of the store has left. Whoever of
// the others is left decides without it.
func (h *Handler) awaitParting(ctx context.Context) error {
	s := h.session
	ready, cancel := both(ctx, s.ctx)
	_ = h.conn.set(ready, h.keys.left(h.id), leftRecord{h.id})
	cancel()
	select {
	case <-s.ctx.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.round.handover, h.round.cut = false, true
	h.last.Size--
	h.last.Agents--
	h.hostLeft = true
	return nil
}

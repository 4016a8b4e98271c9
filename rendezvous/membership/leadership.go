package membership

import (
	"bytes"
	"context"
	"errors"
	"time"

	"muster/internal/errhint"
)

// errUsurped is the end of a coordinator whose leadership somebody else may have: two must not lead.
var errUsurped = errors.New("the record of this job's coordinator in the store was removed or replaced")

const usurpedHint = "does another program, or an agent of another version, write to this store under the same run id?"

// guard notices when this coordinator's record does not stand any more.
func (c *coordinator) guard(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.lookEvery())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := c.inLead(ctx); errors.Is(err, errUsurped) {
			return err
		}
		// One that has the leadership after us waits for members of our round that answer it. From then on we must not
		// grant them anything, and end our own workers: it does not wait for us.
		if next := c.keepTerm(ctx); next > c.term.term {
			c.resign(next)
			return nil
		}
	}
}

// keepTerm returns the term that stands in the store, and puts this coordinator's there where nobody of this job has
// written what stands: everybody who looks for the leadership would end by that.
func (c *coordinator) keepTerm(ctx context.Context) int {
	var now termRecord
	key := c.keys.job("term")
	stands, err := c.store.glance(ctx, key, &now)
	if isUntrusted(err) {
		_, err = c.store.replace(ctx, key, stands.raw, termRecord{c.term.term}, &now)
		c.log.Debug().Err(err).Msg("something that is no agent of this job has written over the record of its coordinator; written again")
	}
	if err != nil {
		return c.term.term
	}
	return now.Term
}

// inLead returns errUsurped where this coordinator's record does not stand any more, and errors of the store.
func (c *coordinator) inLead(ctx context.Context) error {
	stands, err := c.store.current(ctx, []string{c.keys.coordinator(c.term.term)})
	if err == nil && !bytes.Equal(stands[0], c.claim) {
		err = errhint.With(errUsurped, usurpedHint)
	}
	return err
}

// ledBefore returns the other agent that was the coordinator before a term, none where that was this one, and whether it
// has left by itself.
func (h *Handler) ledBefore(ctx context.Context, term int) (before coordinatorRecord, left bool, err error) {
	if _, err = h.conn.peek(ctx, h.keys.coordinator(term-1), &before); err != nil || before.Agent == "" || before.Agent == h.id {
		return coordinatorRecord{}, false, err
	}
	last, _, err := h.conn.pulseOf(ctx, h.keys, before.Agent)
	return before, last.Left, err
}

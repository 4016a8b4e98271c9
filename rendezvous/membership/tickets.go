package membership

import (
	"context"
	"errors"
	"time"
)

// The counter of tickets is a bare number that anybody may change who reaches the store. It is a hint: it says up to
// where to look. A ticket that was drawn and not written for as long as a node may be silent does not hold up those
// behind it, and a node whose ticket is not heard draws another one.

const (
	// batch is how many tickets are read in one request.
	batch = 1024
	// mostSkipped is how many tickets we look at behind one that is missing: more than any job draws at once. Where
	// there are more, we look at the last batch.
	mostSkipped = 1 << 16
	// mostLate is how many missing tickets are waited for.
	mostLate = 64
)

// listen reads the tickets in their order.
func (c *coordinator) listen(ctx context.Context) error {
	late := make(chan struct{}, mostLate)
	for next := int64(1); ; {
		there, err := c.hear(ctx, next)
		if err != nil {
			return err
		}
		if there {
			next++
		}
		drawn, err := c.store.drawn(ctx, c.keys.term(c.term, "tickets"), next-1)
		if err != nil {
			return err
		}
		for there && next <= drawn {
			last := min(drawn, next+batch-1)
			values, err := c.tickets(ctx, next, last)
			if err != nil {
				break // one of them is missing; what is there is taken without waiting once the first one is late
			}
			for i, v := range values {
				if err := c.record(ctx, next+int64(i), v); err != nil {
					return err
				}
			}
			next = last + 1
		}
		if !there && drawn >= next {
			if next, err = c.skip(ctx, next, drawn, late); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// tickets waits for tickets first to last for as long as a node may be silent.
func (c *coordinator) tickets(ctx context.Context, first, last int64) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.deadAfter())
	defer cancel()
	var keys []string
	for t := first; t <= last; t++ {
		keys = append(keys, c.keys.join(c.term, t))
	}
	return c.store.raws(ctx, keys)
}

// hear waits for one ticket for as long as a node may be silent, and reports whether it came.
func (c *coordinator) hear(ctx context.Context, ticket int64) (bool, error) {
	values, err := c.tickets(ctx, ticket, ticket)
	switch {
	case err == nil:
		return true, c.record(ctx, ticket, values[0])
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded): // ours: see tickets
		return false, nil
	}
	return false, err
}

// skip takes what is there of the tickets from next, which is missing, to drawn, and returns the one behind them.
func (c *coordinator) skip(ctx context.Context, next, drawn int64, late chan struct{}) (int64, error) {
	if drawn-next > mostSkipped {
		if !c.skipped {
			c.skipped = true
			c.log.Warn().Int64("tickets",
				drawn-next).Msg("the counter of joining nodes has jumped: something else changes it. Nodes that were not heard ask again")
		}
		next = drawn - batch
	}
	for next <= drawn {
		last := min(drawn, next+batch-1)
		var keys []string
		for t := next; t <= last; t++ {
			keys = append(keys, c.keys.join(c.term, t))
		}
		values, err := c.store.current(ctx, keys)
		if err != nil {
			return next, err
		}
		for i, v := range values {
			ticket := next + int64(i)
			if v != nil {
				if err := c.record(ctx, ticket, v); err != nil {
					return next, err
				}
				continue
			}
			select {
			case late <- struct{}{}: // should its agent only have stood still
				c.wg.Go(func() {
					if v, err := c.store.raws(ctx, keys[i:i+1]); err == nil {
						<-late
						_ = c.record(ctx, ticket, v[0])
					}
				})
			default: // it will ask again
			}
		}
		next = last + 1
	}
	return next, nil
}

// record takes in what stands on a ticket. What no agent of this job can have written is no ticket: who has drawn it
// asks again.
func (c *coordinator) record(ctx context.Context, ticket int64, value []byte) error {
	key := c.keys.join(c.term, ticket)
	var rec joinRecord
	writer, err := c.codec.open(key, value, &rec)
	if err == nil {
		err = c.codec.by(key, writer, rec.Agent)
	}
	return c.tell(ctx, func() {
		switch {
		case err == nil:
			c.take(ctx, ticket, rec)
		case isNonce(rec.Agent) && c.codec.by(key, writer, rec.Agent) == nil: // an agent of this job that claims too much
			c.roster.refuse(joiner{ticket: ticket, rec: rec}, err.Error())
		default:
			c.log.Warn().Err(err).Msg("ticket not understood")
		}
	})
}

// take takes in a ticket.
func (c *coordinator) take(ctx context.Context, ticket int64, rec joinRecord) {
	if rec.Min != c.cfg.Min || rec.Max != c.cfg.Max {
		c.log.Warn().Str("node", rec.String()).Int("min_nodes", rec.Min).Int("max_nodes", rec.Max).
			Msg("node was started with another --nnodes; those of the coordinator count")
	}
	p := c.pulses[rec.Agent]
	if p == nil {
		p = &pulse{}
		c.pulses[rec.Agent] = p
	}
	p.silent, p.garbled, p.deaf, p.joined = 0, false, 0, true // it lives
	c.setHere(rec.Agent, true)
	if rec.Hosts { // the one before is lost
		c.setHosted(rec.Agent)
	}
	if c.heardBefore(ctx, ticket, rec) {
		c.log.Debug().Str("node", rec.String()).Int64("ticket", ticket).Msg("node asks again")
		return
	}
	c.log.Debug().Str("node", rec.String()).Int64("ticket", ticket).Msg("node joined")
	if c.knowsNothing(rec) {
		c.log.Warn().Str("node", rec.String()).Msg("a node of an earlier start of this job has come: it takes part as a new one")
		c.roster.fromElsewhere()
		c.roster.resumes(rec, c.hosted)
		rec = rec.anew()
	}
	c.roster.join(c.now(), ticket, rec)
	c.untold = append(c.untold, untold{ticket, c.now()})
}

// knowsNothing reports whether an agent was last in a job that this one does not go on with: the rounds here began
// without it.
func (c *coordinator) knowsNothing(rec joinRecord) bool {
	return len(c.nonces) > 0 && rec.RoundJob != "" && rec.RoundJob != c.job
}

// heardBefore takes in another ticket of an agent for the same wish: the answer was taken away, or is on its way. The
// answer is given again; it is never another one.
func (c *coordinator) heardBefore(ctx context.Context, ticket int64, rec joinRecord) bool {
	old, waits := c.roster.again(ticket, rec)
	c.mu.Lock()
	before, known := c.told[rec.Agent]
	known = known && rec.Wish != "" && before.wish == rec.Wish
	if known && !waits {
		old = before.ticket
	}
	c.mu.Unlock()
	if b := before.answer.Begin; known && b != nil && b.Round != c.roster.round {
		known = false // it was given up meanwhile
	}
	if !known && !waits {
		return false
	}
	keys := c.ticketKeys(old)
	c.wg.Go(func() { _ = c.store.remove(ctx, keys...) })
	if !known {
		c.untold = append(c.untold, untold{ticket, c.now()})
		return true
	}
	if err := c.reply(ctx, joiner{ticket: ticket, rec: rec}, before.answer); err != nil {
		c.log.Debug().Err(err).Msg("answer not given again") // the store is lost
	}
	return true
}

// untold is a ticket without an answer, and when it was heard.
type untold struct {
	ticket int64
	since  time.Duration
}

// ticketKeys returns the keys of a ticket that nobody needs any more.
func (c *coordinator) ticketKeys(ticket int64) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := []string{c.keys.join(c.term, ticket)}
	for n := range c.answers[ticket] {
		keys = append(keys, c.keys.answer(c.term, ticket, n+1))
	}
	delete(c.answers, ticket)
	return keys
}

package rollcall

import (
	"context"
	"fmt"
	"time"
)

// listen reads the tickets in their order. A ticket that was drawn and not written for as long as a node may be silent
// does not hold up those behind it: its agent has died, as a rule.
func (c *coordinator) listen(ctx context.Context) error {
	for next := int64(1); ; next++ {
		if err := c.hear(ctx, next); err != nil {
			return err
		}
		drawn, err := c.store.Add(ctx, c.keys.term(c.term, "tickets"), 0)
		if err != nil {
			return err
		}
		for next < drawn {
			last := min(drawn, next+1024)
			values, err := c.getAll(ctx, c.cfg.deadAfter(), next+1, last)
			if err != nil {
				break // one of them is missing; they are heard one by one
			}
			for i, v := range values {
				if err := c.record(ctx, next+1+int64(i), v); err != nil {
					return err
				}
			}
			next = last
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (c *coordinator) getAll(ctx context.Context, limit time.Duration, first, last int64) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var keys []string
	for t := first; t <= last; t++ {
		keys = append(keys, c.keys.join(c.term, t))
	}
	return getAll(ctx, c.store, keys)
}

// hear waits for one ticket.
func (c *coordinator) hear(ctx context.Context, ticket int64) error {
	key := c.keys.join(c.term, ticket)
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, c.cfg.deadAfter())
		value, err := c.store.Get(limited, key)
		late := limited.Err() != nil
		cancel()
		if err == nil {
			return c.record(ctx, ticket, value)
		}
		if !late || ctx.Err() != nil {
			return err
		}
		drawn, err := c.store.Add(ctx, c.keys.term(c.term, "tickets"), 0)
		if err != nil {
			return err
		}
		if drawn > ticket {
			c.wg.Go(func() { // should its agent only have stood still
				if value, err := c.store.Get(ctx, key); err == nil {
					_ = c.record(ctx, ticket, value)
				}
			})
			return nil
		}
	}
	return context.Cause(ctx)
}

// record takes in what stands on a ticket.
func (c *coordinator) record(ctx context.Context, ticket int64, value []byte) error {
	key := c.keys.join(c.term, ticket)
	var rec joinRecord
	err := c.codec.open(key, value, &rec)
	if err == nil {
		if err = rec.check(); err != nil {
			err = fmt.Errorf("cannot use %q in the store: %w", key, err)
		}
	}
	return c.tell(ctx, func() {
		if err != nil {
			c.roster.refuse(ticket, err.Error())
			return
		}
		if rec.Min != c.cfg.Min || rec.Max != c.cfg.Max {
			c.log.Warn().Str("node", rec.String()).Int("min_nodes", rec.Min).Int("max_nodes", rec.Max).
				Msg("node was started with another --nnodes; those of the coordinator count")
		}
		if c.pulses[rec.Agent] == nil {
			c.pulses[rec.Agent] = &pulse{}
		}
		c.setHere(rec.Agent, true)
		c.log.Debug().Str("node", rec.String()).Int64("ticket", ticket).Msg("node joined")
		c.roster.join(c.now(), ticket, rec)
	})
}

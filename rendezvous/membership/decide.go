package membership

import (
	"context"
	"errors"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// What the agents of a round propose stands where the first of them has put it: how the round ends under "verdict", the
// status that the job ends with under "agreed". Who can delete keys could have them propose again, and show each agent
// another one. So the coordinator says what counts, once, and puts it there again where it is gone. Where the
// coordinator is lost, what was proposed counts.
const (
	keyDecided = "decided" // rendezvous.Verdict: what the coordinator has found under "verdict"
	keySettled = "settled" // settledRecord: what it has found under "agreed"
)

// settledRecord is what the agents of a round have agreed on.
type settledRecord struct {
	Value []byte `json:"value"`
}

// decision is what the coordinator has said on a round, for the agent in its own process.
type decision struct {
	made, agreed chan struct{} // closed when verdict and value are there
	verdict      rendezvous.Verdict
	value        []byte
}

// decideOn says what counts on a round that has begun, until the next one begins.
func (c *coordinator) decideOn(ctx context.Context, id roundID) {
	if c.deciding != nil {
		c.deciding()
	}
	deciding, cancel := context.WithCancel(ctx)
	d := &decision{made: make(chan struct{}), agreed: make(chan struct{})}
	c.deciding = cancel
	c.mu.Lock()
	c.decision, c.decides = d, id
	c.mu.Unlock()
	c.wg.Go(func() { c.awaitVerdict(ctx, deciding, id, d) })
	c.wg.Go(func() {
		value, err := c.store.awaitBytes(deciding, c.keys.round(id, "agreed"), c.cfg.lookEvery())
		if err == nil {
			d.value = value
			close(d.agreed)
			c.keep(deciding, c.keys.round(id, keySettled), settledRecord{value})
		}
	})
}

// decisionOn returns the decision on the last round, nil where that is another one.
func (c *coordinator) decisionOn(id roundID) *decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.decides != id {
		return nil
	}
	return c.decision
}

// awaitVerdict waits until the round is over, and says so.
func (c *coordinator) awaitVerdict(ctx, deciding context.Context, id roundID, d *decision) {
	var said verdictRecord
	_, err := c.store.get(ctx, c.keys.round(id, "verdict"), &said)
	if storeFailed(err) {
		return // the store is lost or ctx has ended: the loop hears of it in another way
	}
	if err != nil {
		c.log.Error().Err(err).Msg("verdict not understood; the round is over")
		said.Verdict = unreadable(err)
	}
	d.verdict = said.Verdict
	close(d.made)
	c.wg.Go(func() { c.keep(deciding, c.keys.round(id, keyDecided), said.Verdict) })
	_ = c.tell(ctx, func() {
		if id.number == c.roster.round {
			c.mix.over(said.Verdict)
			c.roster.end(said.Verdict)
		}
	})
}

// keep writes a record, and writes it again where it is gone or was replaced, until ctx ends or the store is lost.
func (c *coordinator) keep(ctx context.Context, key string, v any) {
	own := c.codec.seal(key, v)
	tick := time.NewTicker(c.cfg.lookEvery())
	defer tick.Stop()
	for stands := false; ; {
		var err error
		if !stands {
			err = c.store.setSealed(ctx, key, own)
		}
		if err != nil && (isClosed(err) || ctx.Err() != nil) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if stands, err = c.store.stands(ctx, key, own); isClosed(err) {
			return
		}
	}
}

// decided waits for what the coordinator says on the verdict, until ctx ends.
func (r *round) decided(ctx context.Context) (rendezvous.Verdict, error) {
	if d := r.decision; d != nil {
		select {
		case <-d.made:
			return d.verdict, nil
		case <-ctx.Done():
			return rendezvous.Verdict{}, context.Cause(ctx)
		}
	}
	key := r.key(keyDecided)
	for {
		var said verdictRecord
		writer, err := r.s.conn.await(ctx, key, r.pause(), &said)
		if err == nil {
			err = r.h.codec.by(key, writer, r.leader)
		}
		if !isUntrusted(err) {
			return said.Verdict, err
		}
		select {
		case <-time.After(r.pause()):
		case <-ctx.Done():
			return rendezvous.Verdict{}, context.Cause(ctx)
		}
	}
}

// settledOn waits for what the coordinator says on what the agents have agreed on, and returns value where it does not.
func (r *round) settledOn(ctx context.Context, value []byte) ([]byte, error) {
	leadership := r.s.leadership(r.h.term.term)
	waiting, cancel := both(ctx, leadership)
	defer cancel()
	waiting, stop := context.WithTimeout(waiting, r.h.cfg.deadAfter())
	defer stop()
	if d := r.decision; d != nil {
		select {
		case <-d.agreed:
			return d.value, nil
		case <-waiting.Done():
			return value, nil
		}
	}
	defer func() {
		if waiting.Err() != nil && ctx.Err() == nil && leadership.Err() == nil {
			r.h.log.Warn().Msg("the coordinator does not say with which status the job ends: other nodes may end with another one")
		}
	}()
	key := r.key(keySettled)
	for {
		var said settledRecord
		writer, err := r.s.conn.await(waiting, key, r.pause(), &said)
		if err == nil {
			err = r.h.codec.by(key, writer, r.leader)
		}
		switch {
		case err == nil:
			return said.Value, nil
		case waiting.Err() != nil && ctx.Err() == nil: // who leads has left, or was lost
			return value, nil
		case !isUntrusted(err):
			return value, err
		}
		select {
		case <-time.After(r.pause()):
		case <-waiting.Done():
		}
	}
}

// confirm returns what counts where stands is what stands as the verdict: what the coordinator says. Where it is lost,
// that counts; where it is in another round, nothing does. What was proposed is proposed again where it is gone
// meanwhile. An agent that stops its workers, whatever counts, waits for no coordinator that does not answer at once: what
// stands came before anything that the others propose when connections break, and its workers need the time for a
// checkpoint.
func (r *round) confirm(ctx context.Context, stands rendezvous.Verdict, stops bool) (rendezvous.Verdict, error) {
	leadership := r.s.leadership(r.h.term.term)
	waiting, cancel := both(ctx, leadership)
	defer cancel()
	waiting, stop := both(waiting, r.strayed)
	defer stop()
	for began := time.Now(); ; {
		once, enough := context.WithTimeout(waiting, r.h.cfg.beatEvery())
		v, err := r.decided(once)
		enough()
		switch {
		case err == nil:
			return v, nil
		case ctx.Err() != nil || isClosed(err):
			return stands, err
		case errors.Is(r.s.strays(), errStrayed):
			return r.roundOver(), nil
		case waiting.Err() != nil, stops:
			return stands, nil
		case time.Since(began) > 5*r.h.cfg.deadAfter():
			return r.recordsLost(), nil
		}
		if stands, err = r.offer(ctx, stands); err != nil {
			return stands, err
		}
	}
}

// reasonRecordsLost is the reason of a verdict where what agents say is taken away again and again.
const reasonRecordsLost = "RecordsLost"

// recordsLost is the verdict where what this agent says does not stay in the store.
func (r *round) recordsLost() rendezvous.Verdict {
	return rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: reasonRecordsLost, Rank: -1, Status: errhint.TryAgain, Node: r.h.cfg.Node,
		Message: "what node " + r.h.cfg.Node + " tells the others does not stay in the store; " + foreignHint,
	}
}

// roundOver is the verdict where the coordinator's is kept from this agent.
func (r *round) roundOver() rendezvous.Verdict {
	return rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: reasonRoundOver, Rank: -1, Message: errStrayed.Error(),
		Grace: r.h.cfg.fence(),
	}
}

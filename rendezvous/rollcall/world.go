package rollcall

import (
	"context"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// keyElsewhere is under which a store says where the job has gone.
const keyElsewhere = "elsewhere"

// elsewhere returns an address that the store has left and at which this job is served again while we came together, ""
// for none, or where we have begun a round: then it goes on here.
func (c *coordinator) elsewhere() string {
	if at := c.world.Load(); at != nil && !c.began.Load() {
		return *at
	}
	return ""
}

// yield sends nodes to the store where the job is, if that is not this one. A store to which most of the last round does
// not come, though it was elected, is given up: some have voted here and then found the old one again.
func (c *coordinator) yield(ctx context.Context) error {
	r := c.roster
	if at := c.elsewhere(); c.goneTo == "" && at != "" && r.phase == phaseGather && r.cutOff() && c.now() >= c.cfg.deadAfter() {
		if err := c.abandon(ctx, at); err != nil {
			return err
		}
	}
	if c.goneTo == "" {
		return nil
	}
	seats := r.waiting
	r.waiting = nil
	clear(r.tickets)
	return c.sendBack(ctx, seats)
}

// abandon leaves word at this store that the job is at another one: for those who were cut off when it was given up, and
// come back to it.
func (c *coordinator) abandon(ctx context.Context, at string) error {
	c.goneTo = at
	key := c.keys.job(keyElsewhere)
	if err := c.store.Set(ctx, key, c.codec.seal(key, at)); err != nil {
		return err
	}
	_, err := c.store.Delete(ctx, c.keys.job("host")) // nobody is to take it for a place to go
	return err
}

// sendBack tells nodes that wait where the job is.
func (c *coordinator) sendBack(ctx context.Context, seats []seat) error {
	for _, s := range seats {
		if err := c.reply(ctx, s.ticket, answer{Elsewhere: c.goneTo}); err != nil {
			return err
		}
	}
	return nil
}

// abandoned asks whether the job has left this store: a coordinator that has not begun a round here may not know.
func (c *coordinator) abandoned(ctx context.Context) error {
	if c.goneTo != "" || c.began.Load() {
		return nil
	}
	if at := c.elsewhere(); at != "" { // the old host has come back meanwhile, with nodes that know nothing of us
		return c.abandon(ctx, at)
	}
	key := c.keys.job(keyElsewhere)
	value, err := peek(ctx, c.store, key)
	if err != nil || value == nil {
		return err
	}
	c.goneTo = c.openElsewhere(key, value)
	return nil
}

// openElsewhere returns what an address that is under key says, "" for one that was not written by us.
func (c *coordinator) openElsewhere(key string, value []byte) (at string) {
	if err := c.codec.open(key, value, &at); err != nil {
		c.log.Warn().Err(err).Msg("not believed that the job goes on elsewhere")
		return ""
	}
	return at
}

// otherWorld returns an address that the store has left and at which an agent serves this job again, "" for none: nodes
// that were restarted know of no other. gone is where that store says that the job is, "" if it does not know.
func (c *coordinator) otherWorld(ctx context.Context) (at, gone string) {
	look := func(at string) (hosted bool) {
		trying, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
		defer cancel()
		conn, err := c.cfg.Dial(trying, at)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		key := c.keys.job(keyElsewhere)
		value, err := peek(trying, conn, key)
		if err != nil || !Hosted(trying, conn, c.cfg.RunID) {
			return false
		}
		if gone = ""; value != nil {
			gone = c.openElsewhere(key, value)
		}
		return true
	}
	for _, at := range c.left {
		if look(at) && gone != c.cfg.At {
			return at, gone
		}
	}
	return "", ""
}

// seekOtherWorld tells nodes that begin the job again where the store was before that it goes on here.
func (c *coordinator) seekOtherWorld(ctx context.Context) {
	tick := time.NewTicker(c.cfg.beatEvery())
	defer tick.Stop()
	for {
		at, gone := c.otherWorld(ctx)
		if at != "" && gone == "" {
			c.world.Store(&at)
		} else { // who serves that one knows that the job is not there
			c.world.Store(nil)
		}
		if at != "" && c.began.Load() {
			c.dissolve(ctx, at)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// dissolve tells the nodes at another store that the job goes on here.
func (c *coordinator) dissolve(ctx context.Context, at string) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
	defer cancel()
	conn, err := c.cfg.Dial(ctx, at)
	if err != nil {
		return
	}
	key := c.keys.job(keyElsewhere)
	if err := conn.Set(ctx, key, c.codec.seal(key, c.cfg.At)); err == nil {
		c.log.Warn().Str("addr", at).Msg("nodes have begun this job again where its store was before: they are told")
	}
	_ = conn.Close()
}

// awaitOtherWorld ends what we have begun where the job goes on at another store; nodes that only wait are sent there.
func (c *coordinator) awaitOtherWorld(ctx context.Context) {
	key := c.keys.job(keyElsewhere)
	value, err := c.store.Get(ctx, key)
	if err != nil {
		return
	}
	at := c.openElsewhere(key, value)
	if at == "" {
		return
	}
	_ = c.tell(ctx, func() {
		if c.goneTo != "" {
			return
		}
		if c.roster.phase != phaseRun {
			c.goneTo = at
			return
		}
		c.roster.propose(rendezvous.Verdict{
			Kind: rendezvous.Fail, Reason: "JobElsewhere", Status: errhint.TryAgain, Rank: -1, Grace: c.cfg.fence(),
			Message: "the job goes on at " + shown(at) + ", to which its store has moved: name that node behind the first one in the endpoint",
		})
	})
}

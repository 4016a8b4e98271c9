package membership

import (
	"context"
	"errors"
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
	if c.job != "" {
		if err := c.store.set(ctx, c.keys.elsewhere(c.job), elsewhereRecord{At: at}); err != nil {
			return err
		}
	}
	return c.store.remove(ctx, c.keys.job("host")) // nobody is to take it for a place to go
}

// sendBack tells nodes that wait where the job is.
func (c *coordinator) sendBack(ctx context.Context, seats []seat) error {
	for _, s := range seats {
		if err := c.reply(ctx, s, answer{Elsewhere: c.goneTo, Unbegun: !c.began.Load()}); err != nil {
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
	for _, key := range c.elsewhereKeys() {
		var word elsewhereRecord
		if _, err := c.store.peek(ctx, key, &word); storeFailed(err) {
			return err
		} else if err == nil && word.At != "" && word.At != c.cfg.At {
			c.goneTo = word.At
			return nil
		}
	}
	return nil
}

// elsewhereKeys are under which this store says to us where the job has gone. One is bound to the job, for who comes back to a
// store that was given up; it is of another job where its nonce is another. One is bound to this coordinator, for nodes that
// have begun the job again and cannot know that nonce: whoever tells them has seen their coordinator's.
func (c *coordinator) elsewhereKeys() []string {
	keys := []string{c.keys.term(c.term, keyElsewhere)}
	if c.job != "" {
		keys = append(keys, c.keys.elsewhere(c.job))
	}
	return keys
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
		there := newRecords(conn, c.codec)
		if !Hosted(trying, conn, c.cfg.RunID, c.cfg.Token) {
			return false
		}
		gone = ""
		keys := []string{c.keys.elsewhere(c.job)}
		if office, err := c.officeAt(trying, there); err == nil {
			keys = append(keys, c.keys.term(office, keyElsewhere))
		}
		for _, key := range keys {
			var word elsewhereRecord
			if _, err := there.peek(trying, key, &word); storeFailed(err) {
				return false
			} else if err == nil && word.At != "" && (!word.Waits || !c.began.Load()) { // who runs there has not heeded that we waited
				gone = word.At
			}
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
		if at != "" && (c.began.Load() || c.most.Load()) { // elsewhere no round can begin with most of the last one
			c.dissolve(ctx, at, !c.began.Load())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// officeAt returns whose office it is at another store.
func (c *coordinator) officeAt(ctx context.Context, there *records) (mandate, error) {
	var term termRecord
	var rec coordinatorRecord
	f, err := there.peek(ctx, c.keys.job("term"), &term)
	if err == nil && f.raw != nil {
		f, err = there.peek(ctx, c.keys.coordinator(term.Term), &rec)
	}
	if err == nil && f.raw == nil {
		err = errors.New("nobody is coordinator there")
	}
	return mandate{term.Term, rec.Nonce}, err
}

// dissolve tells the nodes at another store that the job goes on here. Where it only waits here, a round that runs there is left
// alone: nodes that know nothing of the last one may have begun it, and here none may ever begin.
func (c *coordinator) dissolve(ctx context.Context, at string, waits bool) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
	defer cancel()
	conn, err := c.cfg.Dial(ctx, at)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	there := newRecords(conn, c.codec)
	office, err := c.officeAt(ctx, there)
	if err == nil && waits {
		var l lobby
		if _, err = there.peek(ctx, c.keys.term(office, "lobby"), &l); l.Running {
			return
		}
	}
	if err == nil {
		err = there.set(ctx, c.keys.term(office, keyElsewhere), elsewhereRecord{At: c.cfg.At, Waits: waits})
	}
	if err == nil {
		c.log.Warn().Str("addr", at).Msg("nodes have begun this job again where its store was before: they are told")
	}
}

// awaitOtherWorld ends what we have begun where the job goes on at another store; nodes that only wait are sent there.
func (c *coordinator) awaitOtherWorld(ctx context.Context, key string) {
	told := key == c.keys.term(c.term, keyElsewhere) // this coordinator; else it is older, and of a time before our rounds
	for {
		var word elsewhereRecord
		if _, err := c.store.await(ctx, key, c.cfg.beatEvery(), &word); err != nil || word.At == c.cfg.At {
			return
		}
		heeded := make(chan bool, 1)
		_ = c.tell(ctx, func() { heeded <- c.heed(word, told) })
		select {
		case done := <-heeded:
			if done {
				return
			}
		case <-ctx.Done():
			return
		}
		select { // a round may begin there yet
		case <-time.After(c.cfg.beatEvery()):
		case <-ctx.Done():
			return
		}
	}
}

// heed does what follows from a word that the job goes on at another store; false: nothing does yet.
func (c *coordinator) heed(word elsewhereRecord, told bool) bool {
	switch {
	case c.goneTo != "" || c.began.Load() && !told:
	case word.Waits && c.began.Load() && (c.roster.phase == phaseRun || !c.roster.cutOff()):
		return false // nobody runs there, and here somebody does
	case c.roster.phase != phaseRun:
		c.goneTo = word.At
	default:
		c.roster.propose(rendezvous.Verdict{
			Kind: rendezvous.Fail, Reason: "JobElsewhere", Status: errhint.TryAgain, Rank: -1, Grace: c.cfg.fence(),
			Message: "the job goes on at " + shown(word.At) + ", to which its store has moved: name that node behind the first one in the endpoint",
		})
	}
	return true
}

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
	if c.began.Load() {
		return ""
	}
	return c.world
}

// yield sends nodes to the store where the job is, if that is not this one. A store to which most of the last round
// does not come, though it was elected, is given up: some have voted here and then found the old one again.
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
	joiners := r.waiting
	r.waiting = nil
	clear(r.tickets)
	return c.sendBack(ctx, joiners)
}

// abandon leaves word at this store that the job is at another one: for those who were cut off when it was given up,
// and come back to it.
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
func (c *coordinator) sendBack(ctx context.Context, joiners []joiner) error {
	for _, s := range joiners {
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

// elsewhereKeys are under which this store says to us where the job has gone. One is bound to the job, for who comes
// back to a store that was given up; it is of another job where its nonce is another. One is bound to this coordinator,
// for nodes that have begun the job again and cannot know that nonce: whoever tells them has seen their coordinator's.
func (c *coordinator) elsewhereKeys() []string {
	keys := []string{c.keys.term(c.term, keyElsewhere)}
	if c.job != "" {
		keys = append(keys, c.keys.elsewhere(c.job))
	}
	return keys
}

// otherWorld is what is known of an address that the store has left and at which an agent serves this job again: nodes
// that were restarted know of no other.
type otherWorld struct {
	at   string // "" for none
	gone string // where that store says that the job is, "" if it does not know
	runs bool   // a round runs there
}

func (c *coordinator) otherWorld(ctx context.Context) otherWorld {
	look := func(at string) (w otherWorld, hosted bool) {
		w.at = at
		trying, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
		defer cancel()
		conn, err := c.cfg.Dial(trying, at)
		if err != nil {
			return w, false
		}
		defer func() { _ = conn.Close() }()
		there := newRecords(conn, c.codec)
		if !Hosted(trying, conn, c.cfg.RunID, c.cfg.Token) {
			return w, false
		}
		keys := []string{c.keys.elsewhere(c.job)}
		if leadership, err := c.leadershipAt(trying, there); err == nil {
			keys = append(keys, c.keys.term(leadership, keyElsewhere))
			var l waitlist
			if _, err := there.peek(trying, c.keys.term(leadership, "lobby"), &l); storeFailed(err) {
				return w, false
			}
			w.runs = l.Running
		}
		for _, key := range keys {
			var word elsewhereRecord
			if _, err := there.peek(trying, key, &word); storeFailed(err) {
				return w, false
			} else if err == nil && word.At != "" && (!word.Waits || !w.runs && !c.began.Load()) { // who runs does not heed who waits
				w.gone = word.At
			}
		}
		return w, true
	}
	for _, at := range c.left {
		if w, hosted := look(at); hosted && w.gone != c.cfg.At {
			return w
		}
	}
	return otherWorld{}
}

// seekOtherWorld tells nodes that begin the job again where the store was before that it goes on here.
func (c *coordinator) seekOtherWorld(ctx context.Context) {
	tick := time.NewTicker(c.cfg.beatEvery())
	defer tick.Stop()
	for {
		w := c.otherWorld(ctx)
		taken := make(chan bool, 1)
		_ = c.tell(ctx, func() { taken <- c.claims(w) })
		select {
		case claims := <-taken:
			if claims {
				c.dissolve(ctx, w.at)
			}
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// claims reports whether nodes at another store are to be told that the job goes on here; else these may yet be sent
// there. Of the two it is one: all would change places.
func (c *coordinator) claims(w otherWorld) bool {
	// Where most of the last one waits here, no round can begin elsewhere with most of it. One that runs there already
	// has nodes that know nothing of it, and here none may ever begin.
	most := c.roster.phase == phaseGather && c.roster.moved > 0 && !c.roster.cutOff()
	claims := w.at != "" && c.goneTo == "" && (c.began.Load() || most && !w.runs)
	if c.world = ""; !claims && w.gone == "" { // else who serves that one knows that the job is not there
		c.world = w.at
	}
	return claims
}

// leadershipAt returns whose leadership it is at another store.
func (c *coordinator) leadershipAt(ctx context.Context, there *records) (mandate, error) {
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

// dissolve tells the nodes at another store that the job goes on here.
func (c *coordinator) dissolve(ctx context.Context, at string) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
	defer cancel()
	conn, err := c.cfg.Dial(ctx, at)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	there := newRecords(conn, c.codec)
	leadership, err := c.leadershipAt(ctx, there)
	if err == nil {
		err = there.set(ctx, c.keys.term(leadership, keyElsewhere), elsewhereRecord{At: c.cfg.At, Waits: !c.began.Load()})
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
		return false // nobody runs there, and here somebody does, or will again
	case c.roster.phase != phaseRun:
		c.goneTo = word.At
	default:
		c.roster.propose(rendezvous.Verdict{
			Kind: rendezvous.Fail, Reason: "JobElsewhere", Status: errhint.TryAgain, Rank: -1, Grace: c.cfg.fence(),
			Message: "the job goes on at " + shown(word.At) +
				", to which its store has moved: name that node behind the first one in the endpoint",
		})
	}
	return true
}

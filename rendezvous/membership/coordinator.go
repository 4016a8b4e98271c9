package membership

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// coordinator runs a roster over the store, for one term.
type coordinator struct {
	cfg    Config
	keys   keys
	codec  codec
	store  *records
	bridge Bridge // nil where agents of torchrun may not take part
	term   mandate
	claim  []byte // the record by which it has the leadership, as it stands in the store
	self   string
	hosted string        // agent that serves the store
	cut    *atomic.Int64 // the round most of which is out of reach, noRound for none
	runs   *atomic.Bool  // whether a round runs
	ledger *ledger
	nudge  chan<- struct{} // our heartbeat is to be sent
	resign func(term int)  // another agent has the leadership, of a later term
	log    zerolog.Logger
	begun  time.Time
	events chan func() // happenings, to be taken in by the loop
	cancel context.CancelFunc
	done   chan struct{}
	ended  atomic.Bool // stop was called
	wg     sync.WaitGroup
	err    error // why the loop ended; to be read after done

	// Only the loop uses these.
	roster     *roster
	pulses     map[string]*pulse
	lastLook   time.Duration
	lastTold   time.Duration
	proposedAt time.Duration // when no verdict was proposed last
	shown      string        // the waitlist as it was written last
	mix        mix
	left       []string       // addresses that the store was at before it moved here
	goneTo     string         // where the job has gone, to be told to whoever waits here; "" nowhere
	began      atomic.Bool    // a round has begun since
	world      string         // an address among left where the job has begun again, "" for none
	stale      [2][]string    // keys of the last two rounds
	job        string         // nonce of this incarnation of the job, empty where it is not known yet
	nonces     map[int]string // of the last rounds
	untold     []untold
	skipped    bool // it was said that tickets are missing
	excluded   *quarantine
	recalled   string             // what stood in the store of excluded nodes last
	room       *room              // nodes that are examined; nil for none
	successors []standby          // of the host of the store, in the last round
	deciding   context.CancelFunc // ends what keeps the decisions on the last round in the store

	mu      sync.Mutex
	here    map[string]bool // agents that have joined and are not gone
	answers map[int64]int   // how many answers a ticket has
	told    map[string]told // the last answer to an agent
	// decision is the one on the last round, which is decides.
	decision *decision
	decides  roundID
}

// told is what an agent was told last, and on which wish.
type told struct {
	ticket int64
	wish   string
	answer answer
}

// newCoordinator takes the leadership: h.claimed was written under the coordinator key of h.term already.
func newCoordinator(ctx context.Context, h *Handler, inherit *handover) (*coordinator, error) {
	c := &coordinator{
		cfg: h.cfg, keys: h.keys, codec: h.codec, store: h.conn, term: h.term, claim: h.claimed, job: h.job, self: h.id, log: h.log,
		begun:  time.Now(),
		events: make(chan func(), 1024), done: make(chan struct{}),
		left: h.left, pulses: map[string]*pulse{}, nonces: map[int]string{}, here: map[string]bool{}, answers: map[int64]int{},
		told:   map[string]told{},
		hosted: h.host, excluded: &h.excluded, cut: &h.session.cut, runs: &h.session.running, ledger: newLedger(h.cfg.deadAfter()),
		nudge: h.session.nudge,
	}
	session, term := h.session, h.term.term
	c.resign = func(next int) { c.ledger.resign(next); session.resigned(term) }
	c.roster = newRoster(h.cfg.rules(h.movable()))
	if inherit != nil {
		inherit.into(c.roster)
		c.ledger.begin(inherit.nonce, inherit.agents, make([]int64, len(inherit.agents)))
		c.began.Store(inherit.round >= 0 && !inherit.moved && !inherit.ended)
		for agent, m := range inherit.members { // whoever else of them is gone is found silent
			if m.gone {
				continue
			}
			c.pulses[agent] = &pulse{}
			c.here[agent] = true
		}
	}
	if h.cfg.Bridge != nil {
		var err error
		if c.bridge, err = h.cfg.Bridge(h.conn.conn); err != nil {
			return nil, err
		}
	}
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.done)
		c.err = c.run(ctx)
		c.cancel()
		c.wg.Wait()
	}()
	return c, nil
}

// handover is what a new coordinator knows of the job before it took the leadership.
type handover struct {
	ended   bool // it was another job, of the same name
	moved   bool // the store is another one
	round   int
	size    int // 0 where what was read may be of an earlier job
	members map[string]member
	nonce   string   // of the round, "" where nobody can be left in it
	job     string   // nonce of its job: who is lost of its members counts where somebody of that job comes
	agents  []string // its agents, by rank among them
	// wait is how long it takes until nobody of the others can still be running.
	wait time.Duration
}

func (i *handover) into(r *roster) {
	if r.last = i.round; i.ended { // only its round numbers go on
		return
	}
	r.round, r.size, r.members, r.notBefore, r.inherited = i.round, i.size, i.members, i.wait, true
	if i.moved {
		r.moved = 1
	}
	r.jobBefore = i.job
	for _, m := range i.members {
		if m.gone { // the coordinator before fell silent
			r.silent++
		}
	}
}

func (c *coordinator) now() time.Duration { return time.Since(c.begun) }

// run takes in what happens until ctx ends or the store fails.
func (c *coordinator) run(ctx context.Context) error {
	failed := make(chan error, 8)
	c.background(ctx, failed, c.listen)
	c.background(ctx, failed, c.guard)
	c.wg.Go(func() {
		if err := noteID(ctx, c.store.conn, c.cfg.RunID); err != nil && ctx.Err() == nil {
			c.log.Debug().Err(err).Msg("run id not noted for other jobs")
		}
	})
	if c.bridge != nil {
		c.background(ctx, failed, c.awaitOthers)
	}
	for _, key := range c.elsewhereKeys() {
		c.wg.Go(func() { c.awaitOtherWorld(ctx, key) })
	}
	if len(c.left) > 0 {
		c.wg.Go(func() { c.seekOtherWorld(ctx) })
	}
	look := time.NewTicker(c.cfg.lookEvery())
	defer look.Stop()
	inherited := make([]string, 0, len(c.pulses)) // some of those may never have had a heartbeat here
	for agent := range c.pulses {
		inherited = append(inherited, c.keys.beat(agent))
	}
	if _, err := c.store.filled(ctx, inherited, beat{}); err != nil {
		return err
	}
	defer c.runs.Store(false)
	c.recall(ctx)
	if err := c.showWaitlist(ctx); err != nil {
		return err
	}
	for {
		var settle <-chan time.Time
		var timer *time.Timer
		if wait := c.roster.wake(c.now()); wait != never {
			timer = time.NewTimer(wait)
			settle = timer.C
		}
		var err error
		select {
		case f := <-c.events:
			f()
			for more := true; more; { // what has come meanwhile is answered together
				select {
				case f := <-c.events:
					f()
				default:
					more = false
				}
			}
		case <-settle:
		case <-look.C:
			if err = c.unsaid(); err == nil {
				err = c.findLost(ctx)
			}
			c.recall(ctx)
		case err = <-failed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if timer != nil {
			timer.Stop()
		}
		if err == nil {
			err = c.yield(ctx)
		}
		if err == nil {
			c.screen(ctx)
			err = c.perform(ctx, c.roster.settle(c.now()))
		}
		c.cut.Store(c.roster.silentRound())
		c.runs.Store(c.roster.phase == phaseRun)
		if err == nil {
			err = c.tellWaiting(ctx)
		}
		if err == nil {
			err = c.doors(ctx)
		}
		if err == nil {
			c.mixing(ctx, failed)
			err = c.showWaitlist(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// background runs f beside the loop; its error ends the loop.
func (c *coordinator) background(ctx context.Context, failed chan<- error, f func(context.Context) error) {
	c.wg.Go(func() {
		if err := f(ctx); err != nil {
			select {
			case failed <- err:
			case <-ctx.Done():
			}
		}
	})
}

// tell hands f to the loop.
func (c *coordinator) tell(ctx context.Context, f func()) error {
	select {
	case c.events <- f:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *coordinator) setHere(agent string, here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if here {
		c.here[agent] = true
	} else {
		delete(c.here, agent)
	}
}

// setHosted takes in which agent serves the store, which may move then.
func (c *coordinator) setHosted(agent string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosted, c.roster.quorum = agent, c.cfg.Failover && !c.roster.mixed
}

// errUnsaid is the end of a coordinator whose verdict does not come to stand in the store.
var errUnsaid = errors.New("the verdict on the round does not stay in the store")

// unsaid returns an error where a verdict was proposed long ago, and there is none.
func (c *coordinator) unsaid() error {
	if c.roster.phase != phaseRun || !c.roster.proposed {
		c.proposedAt = c.now()
	} else if c.now()-c.proposedAt > 5*c.cfg.deadAfter() {
		return errhint.With(errUnsaid, foreignHint)
	}
	return nil
}

// perform does what the roster decided.
func (c *coordinator) perform(ctx context.Context, effects []effect) error {
	for _, e := range effects {
		var err error
		switch {
		case e.begin != nil:
			err = c.begin(ctx, e.begin)
		case e.propose != nil:
			err = c.propose(ctx, e.round, *e.propose)
		case e.reply != nil:
			if why := e.reply.answer.Refused; why != "" {
				c.log.Warn().Str("reason", shown(why)).Msg("join refused")
			}
			err = c.reply(ctx, e.reply.joiner, e.reply.answer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answering returns the next answer to a ticket as it is to be stored.
func (c *coordinator) answering(s joiner, a answer) record {
	a.Agent, a.Wish = s.rec.Agent, s.rec.Wish
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[s.ticket]++
	c.told[s.rec.Agent] = told{s.ticket, s.rec.Wish, a}
	return record{c.keys.answer(c.term, s.ticket, c.answers[s.ticket]), a}
}

func (c *coordinator) reply(ctx context.Context, s joiner, a answer) error {
	r := c.answering(s, a)
	return c.store.set(ctx, r.key, r.value)
}

// tellWaiting tells those who have drawn a ticket that it was heard: at once while a round runs, in which they have no
// part, else after a while, since the answer is due when all are there. Who hears nothing asks again.
func (c *coordinator) tellWaiting(ctx context.Context) error {
	if len(c.untold) == 0 || c.roster.phase != phaseRun && c.now()-c.lastTold < c.cfg.lookEvery() {
		return nil
	}
	c.lastTold = c.now()
	joiners := make(map[int64]joiner, len(c.roster.waiting))
	for _, s := range c.roster.waiting {
		joiners[s.ticket] = s
	}
	var later []untold
	var answers []record
	for _, u := range c.untold {
		s, waits := joiners[u.ticket]
		switch {
		case !waits || s.door.inside || s.door.told: // it has its answer
		case c.roster.phase == phaseRun || c.now()-u.since >= c.cfg.KeepAlive:
			answers = append(answers, c.answering(s, answer{Wait: &waiting{Job: c.job}}))
		default:
			later = append(later, u)
		}
	}
	c.untold = later
	return c.store.setAll(ctx, answers)
}

// propose offers a verdict on a round; what counts comes back through awaitVerdict.
func (c *coordinator) propose(ctx context.Context, round int, v rendezvous.Verdict) error {
	v.Node = c.cfg.Node
	var said verdictRecord
	_, err := c.store.claim(ctx, c.keys.round(roundID{round, c.nonces[round]}, "verdict"), v, &said)
	if storeFailed(err) {
		return err
	}
	return nil
}

// showWaitlist writes how far the meeting has come, when that has changed.
func (c *coordinator) showWaitlist(ctx context.Context) error {
	l := c.roster.waitlist(c.now())
	if c.roster.mixed && c.roster.phase == phaseGather {
		l.Note = c.bridge.Progress()
	}
	l.Standbys = c.successors
	text := string(encoded(l))
	if text == c.shown {
		return nil
	}
	c.shown = text
	return c.store.set(ctx, c.keys.term(c.term, "lobby"), l)
}

// othersGone waits until no other agent is left that counts, but the host of the store, or ctx ends.
func (c *coordinator) othersGone(ctx context.Context, counts func(agent string) bool) {
	for ctx.Err() == nil {
		var agents, keys []string
		c.mu.Lock()
		for agent := range c.here {
			if agent != c.self && agent != c.hosted && counts(agent) { // the host waits for us
				agents, keys = append(agents, agent), append(keys, c.keys.left(agent))
			}
		}
		c.mu.Unlock()
		if len(keys) == 0 {
			return
		}
		// Some of them may die instead of leaving: then here becomes smaller.
		limited, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive/4)
		err := c.store.collect(limited, keys, c.cfg.lookEvery(), func(i int, raw []byte) bool {
			var left leftRecord
			_, err := c.codec.open(keys[i], raw, &left)
			return err == nil && left.Agent == agents[i]
		})
		cancel()
		if err == nil || isClosed(err) {
			return
		}
	}
}

// stop ends the coordinator and waits for it.
func (c *coordinator) stop() {
	c.ended.Store(true)
	c.cancel()
	<-c.done
}

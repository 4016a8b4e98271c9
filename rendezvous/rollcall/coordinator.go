package rollcall

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

// coordinator runs a roster over the store, for one term.
type coordinator struct {
	cfg    Config
	keys   keys
	codec  codec
	store  rendezvous.Store
	bridge Bridge // nil where agents of torchrun may not take part
	term   int
	self   string
	hosted string        // agent that serves the store
	cut    *atomic.Int64 // the round most of which is out of reach, noRound for none
	log    zerolog.Logger
	begun  time.Time
	events chan func() // happenings, to be taken in by the loop
	cancel context.CancelFunc
	done   chan struct{}
	wg     sync.WaitGroup
	err    error // why the loop ended; to be read after done

	// Only the loop uses these.
	roster     *roster
	pulses     map[string]*pulse
	lastLook   time.Duration
	shown      string // the lobby as it was written last
	mix        mix
	left       []string               // addresses that the store was at before it moved here
	goneTo     string                 // where the job has gone, to be told to whoever waits here; "" nowhere
	began      atomic.Bool            // a round has begun since
	world      atomic.Pointer[string] // an address among left where the job has begun again
	litter     [2][]string            // keys of the last two rounds
	successors []heir                 // of the host of the store, in the round that runs

	mu    sync.Mutex
	here  map[string]bool // agents that have joined and are not gone
	ready map[int64]bool  // tickets that were told to prepare: their answer is the second one
}

// pulse is what the coordinator saw of one agent's heartbeat.
type pulse struct {
	value  string
	silent time.Duration // time in which we looked and saw no change
}

// newCoordinator takes office: claimed was written under the coordinator key of term already.
func newCoordinator(ctx context.Context, h *Handler, term int, inherit *inheritance) (*coordinator, error) {
	c := &coordinator{
		cfg: h.cfg, keys: h.keys, codec: h.codec, store: h.conn, term: term, self: h.id, log: h.log, begun: time.Now(),
		events: make(chan func(), 1024), done: make(chan struct{}),
		left: h.left, pulses: map[string]*pulse{}, here: map[string]bool{}, ready: map[int64]bool{}, hosted: h.host, cut: &h.session.cut,
	}
	c.roster = newRoster(h.cfg.rules(h.movable()))
	if inherit != nil {
		inherit.into(c.roster)
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
		if c.bridge, err = h.cfg.Bridge(h.conn); err != nil {
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

// inheritance is what a new coordinator knows of the job before it took office.
type inheritance struct {
	ended   bool // it was another job, of the same name
	moved   bool // the store is another one
	round   int
	size    int
	members map[string]member
	// wait is how long it takes until nobody of the others can still be running.
	wait time.Duration
}

func (i *inheritance) into(r *roster) {
	if r.last = i.round; i.ended { // only its round numbers go on
		return
	}
	r.round, r.size, r.members, r.notBefore, r.inherited = i.round, i.size, i.members, i.wait, true
	if i.moved {
		r.moved = 1
	}
	for agent, m := range i.members {
		if m.gone { // the coordinator before fell silent
			r.silent++
			r.predecessor = agent
		}
	}
}

func (c *coordinator) now() time.Duration { return time.Since(c.begun) }

// run takes in what happens until ctx ends or the store fails.
func (c *coordinator) run(ctx context.Context) error {
	failed := make(chan error, 8)
	c.background(ctx, failed, c.listen)
	c.wg.Go(func() {
		if err := noteID(ctx, c.store, c.cfg.RunID); err != nil && ctx.Err() == nil {
			c.log.Debug().Err(err).Msg("run id not noted for other jobs")
		}
	})
	if c.bridge != nil {
		c.background(ctx, failed, c.awaitOthers)
	}
	c.wg.Go(func() { c.awaitOtherWorld(ctx) })
	if len(c.left) > 0 {
		c.wg.Go(func() { c.seekOtherWorld(ctx) })
	}
	look := time.NewTicker(c.cfg.lookEvery())
	defer look.Stop()
	for agent := range c.pulses { // of those that we inherited some may never have had a heartbeat here
		if _, err := c.store.CompareAndSet(ctx, c.keys.beat(agent), nil, []byte("0")); err != nil {
			return err
		}
	}
	if err := c.showLobby(ctx); err != nil {
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
			err = c.look(ctx)
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
			err = c.perform(ctx, c.roster.settle(c.now()))
		}
		c.cut.Store(c.roster.silentRound())
		if err == nil {
			c.mixing(ctx, failed)
			err = c.showLobby(ctx)
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

// look reads every heartbeat.
func (c *coordinator) look(ctx context.Context) error {
	agents := make([]string, 0, len(c.pulses))
	keys := make([]string, 0, len(c.pulses))
	for agent := range c.pulses {
		agents = append(agents, agent)
		keys = append(keys, c.keys.beat(agent))
	}
	if len(keys) == 0 {
		c.lastLook = c.now()
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
	values, err := getAll(limited, c.store, keys)
	missing := err != nil && limited.Err() != nil && ctx.Err() == nil
	cancel()
	if missing { // whoever has joined without a heartbeat gets one that stands still
		for _, key := range keys {
			if _, err := c.store.CompareAndSet(ctx, key, nil, []byte("0")); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	// Only time in which we looked counts: while this process or the store stood still, no heartbeat could reach us.
	gap := min(c.now()-c.lastLook, c.cfg.longestGap())
	c.lastLook = c.now()
	for i, agent := range agents {
		p, value := c.pulses[agent], string(values[i])
		if value != p.value {
			p.value, p.silent = value, 0
		} else {
			p.silent += gap
		}
		left := value == beatLeft
		if !left && p.silent < c.cfg.deadAfter() {
			continue
		}
		delete(c.pulses, agent)
		c.setHere(agent, false)
		if !left {
			c.log.Warn().Str("node", c.roster.name(agent)).Dur("silent_ms", p.silent).Msg("node lost")
		}
		c.roster.lost(c.now(), agent, left)
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
			err = c.reply(ctx, e.reply.ticket, e.reply.answer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *coordinator) answerKey(ticket int64) string {
	return c.keys.answer(c.term, ticket)
}

func (c *coordinator) reply(ctx context.Context, ticket int64, a answer) error {
	key := c.answerKey(ticket)
	c.mu.Lock()
	if c.ready[ticket] {
		key += "/2"
	}
	c.ready[ticket] = c.ready[ticket] || a.Prepare != nil
	c.mu.Unlock()
	return c.store.Set(ctx, key, c.codec.seal(key, a))
}

// propose offers a verdict on a round; what counts comes back through awaitVerdict.
func (c *coordinator) propose(ctx context.Context, round int, v rendezvous.Verdict) error {
	v.Node = c.cfg.Node
	key := c.keys.round(round, "verdict")
	_, err := c.store.CompareAndSet(ctx, key, nil, c.codec.seal(key, v))
	return err
}

// awaitVerdict waits until the round is over.
func (c *coordinator) awaitVerdict(ctx context.Context, number int) {
	key := c.keys.round(number, "verdict")
	value, err := c.store.Get(ctx, key)
	if err != nil {
		return // the store is lost or ctx has ended: the loop hears of it in another way
	}
	v, err := c.codec.verdict(key, value)
	_ = c.tell(ctx, func() {
		if err != nil {
			c.log.Error().Err(err).Msg("verdict not understood; the round is over")
			v = rendezvous.Verdict{Kind: rendezvous.Reassemble, Rank: -1}
		}
		if number == c.roster.round {
			c.mix.over(v)
			c.roster.end(v)
		}
	})
}

// showLobby writes how far the meeting has come, when that has changed.
func (c *coordinator) showLobby(ctx context.Context) error {
	l := c.roster.lobby(c.now())
	if c.roster.mixed && c.roster.phase == phaseGather {
		l.Note = c.bridge.Progress()
	}
	if l.Running {
		l.Heirs = c.successors
	}
	key := c.keys.term(c.term, "lobby")
	text := c.codec.seal(key, l)
	if string(text) == c.shown {
		return nil
	}
	c.shown = string(text)
	return c.store.Set(ctx, key, text)
}

// othersGone waits until no other agent is left but the host of the store, or ctx ends.
func (c *coordinator) othersGone(ctx context.Context) {
	for ctx.Err() == nil {
		var keys []string
		c.mu.Lock()
		for agent := range c.here {
			if agent != c.self && agent != c.hosted { // the host waits for us
				keys = append(keys, c.keys.job("left/"+agent))
			}
		}
		c.mu.Unlock()
		if len(keys) == 0 {
			return
		}
		// Some of them may die instead of leaving: then here becomes smaller.
		limited, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive/4)
		err := c.store.Wait(limited, keys...)
		cancel()
		if err == nil || errors.Is(err, rendezvous.ErrStoreClosed) {
			return
		}
	}
}

// stop ends the coordinator and waits for it.
func (c *coordinator) stop() {
	c.cancel()
	<-c.done
}

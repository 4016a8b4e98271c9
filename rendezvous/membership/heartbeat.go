package membership

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// watch is what an agent has seen of its coordinator's heartbeats.
type watch struct {
	agent  string
	term   int
	seen   beat
	silent time.Duration // time in which we looked and saw no change
	looked time.Time
	// foreign says that nobody of this job has written what stood there in that time.
	foreign bool
}

// beat writes our heartbeat and watches the coordinator's, until ctx ends or the store is lost.
func (s *session) beat(ctx context.Context) {
	cfg := &s.h.cfg
	store := s.conn.reserved() // on a bad network a new connection takes most of the time that there is
	tick := time.NewTicker(cfg.beatEvery())
	defer tick.Stop()
	w := watch{looked: time.Now()}
	for turn := 0; ; turn++ {
		s.mu.Lock()
		term, who, leads := s.mandate.term, s.leader, s.leadsLocked()
		s.mu.Unlock()
		// In a job of many agents, and before we know how large it is, we write at one turn and read at the next.
		slow := cfg.pause(int(s.agents.Load())) > cfg.beatEvery()
		reads := who != "" && who != s.h.id && (!slow || turn%2 == 1)
		writes := !slow || turn%2 == 0 || leads
		// The coordinator counts our silence from when it saw a heartbeat, which is after we sent it: so we give up
		// first.
		until, round := s.patience()
		once, cancel := context.WithDeadline(ctx, round)
		var now beat
		var foreign bool
		var err error
		if reads { // first: what we write answers it
			if now, foreign, err = store.pulseOf(once, s.h.keys, who); err == nil { // there may be none
				s.watches(&w, term, who, now, foreign)
			}
		}
		if err == nil && writes {
			err = s.sendBeat(once, store)
		}
		if err == nil && s.deposed(term) {
			err = s.followNext(once, store, term)
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			s.outOfReach(s.cut.Load(), w.seen.cut())
		case isClosed(err):
			s.lose(err)
			return
		case !time.Now().Before(until):
			s.lose(fmt.Errorf("%s does not answer for %v", s.where(), cfg.deadAfter()))
			return
		case !time.Now().Before(round):
			s.unanswered()
			continue
		}
		select {
		case <-tick.C:
		case <-s.nudge:
		case <-ctx.Done():
			return
		}
	}
}

// sendBeat writes a heartbeat.
func (s *session) sendBeat(ctx context.Context, store *records) error {
	sent := time.Now()
	s.says(sent)
	err := store.set(ctx, s.h.keys.beat(s.h.id), s.heartbeat(sent))
	if err == nil {
		s.answered(sent)
	}
	return err
}

// watches takes in the coordinator's heartbeat as it stands.
func (s *session) watches(w *watch, term int, who string, now beat, foreign bool) {
	cfg := &s.h.cfg
	at := time.Now()
	gap := min(at.Sub(w.looked), cfg.longestGap())
	w.looked = at
	if who != w.agent || term != w.term { // each has as long to be heard as those before it
		*w = watch{agent: who, term: term, looked: at}
	}
	gone := false
	if now.N > w.seen.N { // an older one is no sign of life
		gone = w.seen.Term != nil && now.Term == nil
		w.seen, w.silent, w.foreign = now, 0, false
		s.hears(who, now, gap)
	} else {
		w.silent += gap
	}
	w.foreign = w.foreign || foreign
	s.mu.Lock()
	s.runs = w.seen.Runs && who == s.leader
	s.vacant = w.seen.Left && who == s.leader
	s.partedByLocked(who, w.seen)
	left := w.seen.Left && (s.parted || !w.seen.parting())
	s.mu.Unlock()
	switch limit := cfg.deadAfter(); {
	case left:
		s.depose(term, errLeft)
	case w.silent >= limit && w.foreign:
		s.depose(term, errGarbled)
	case w.silent >= limit:
		s.depose(term, fmt.Errorf("the coordinator is not heard of for %v", cfg.deadAfter()))
	case gone || w.seen.Term != nil && *w.seen.Term > term:
		s.depose(term, errAnew)
	default:
		switch {
		case w.silent < limit/2:
			s.unheard(errUnheard)
		case w.foreign:
			s.unheard(errGarbled)
		default:
			s.unheard(errSilent)
		}
	}
}

// beat is a heartbeat. N grows from each of an agent to its next: what is written again later is no sign of life. A
// coordinator says of which term it is, which round it has begun last and whether that runs, what it has heard of each
// member, and of which round it does not hear enough.
type beat struct {
	N     int64  `json:"n"`
	Left  bool   `json:"left,omitempty"` // the agent has left
	To    string `json:"to,omitempty"`   // agent id of the coordinator whose heartbeat Heard it answers
	Heard int64  `json:"heard,omitempty"`
	Term  *int   `json:"term,omitempty"`
	Round string `json:"round,omitempty"` // the nonce of the round
	Runs  bool   `json:"runs,omitempty"`
	Seen  string `json:"seen,omitempty"` // see seenAges
	Cut   *int64 `json:"cut,omitempty"`
}

func (b *beat) check() error {
	if b.N < 0 || b.Heard < 0 || b.Term != nil && (*b.Term < 0 || *b.Term > maxTerms) || len(b.Seen) > maxNodes ||
		b.To != "" && !isNonce(b.To) || b.Round != "" && !isNonce(b.Round) {
		return fmt.Errorf("it is heartbeat %d", b.N)
	}
	return nil
}

func (b *beat) cut() int64 {
	if b.Term == nil || b.Cut == nil {
		return noRound
	}
	return *b.Cut
}

// heartbeat is what an agent writes, never twice the same.
func (s *session) heartbeat(now time.Time) beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := beat{N: s.h.beats.Add(1)} // a later one never says less of our leadership
	if s.leads >= 0 {
		leads := s.leads
		b.Term, b.Runs = &leads, s.running.Load()
		if cut := s.cut.Load(); cut != noRound {
			b.Cut = &cut
		}
		s.ledger.send(&b, now)
		b.Left = s.parting
	}
	if s.replies.to != "" && s.replies.to != s.h.id {
		b.To, b.Heard = s.replies.to, s.replies.answer(now)
	}
	return b
}

// pulseOf reads an agent's heartbeat. What that agent has not written is none; foreign says that this stands there, or
// nothing: an agent writes its first one before it joins.
func (r *records) pulseOf(ctx context.Context, k keys, agent string) (b beat, foreign bool, err error) {
	f, err := r.glance(ctx, k.beat(agent), &b)
	if storeFailed(err) {
		return beat{}, false, err
	}
	if err != nil || f.raw == nil || r.codec.by(k.beat(agent), f.writer, agent) != nil {
		return beat{}, true, nil //nolint:nilerr // what cannot be trusted is silence
	}
	return b, false, nil
}

// pulse is what the coordinator saw of one agent's heartbeat.
type pulse struct {
	value   []byte // as it stands in the store
	n       int64
	heard   int64 // which of our heartbeats it has answered last
	left    bool
	silent  time.Duration // time in which we looked and saw no change
	garbled bool          // nobody of this job has written what stood there in that time
	foreign bool          // nor what stands there now
	deaf    time.Duration // that time when it wrote a heartbeat last, which answers none of ours that is not old
	joined  bool          // it has come here: its first heartbeat was there before that
}

// findLost reads every heartbeat, and takes a node for lost whose heartbeat stands still for too long
// (Config.deadAfter).
func (c *coordinator) findLost(ctx context.Context) error {
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
	values, err := c.store.raws(limited, keys)
	missing := err != nil && limited.Err() != nil && ctx.Err() == nil
	cancel()
	if missing { // whoever has joined without a heartbeat, or whose was taken away, gets one that stands still
		values, err = c.store.filled(ctx, keys, beat{})
	}
	if err != nil {
		return err
	}
	// Only time in which we looked counts: while this process or the store stood still, no heartbeat could reach us.
	gap := min(c.now()-c.lastLook, c.cfg.longestGap())
	c.lastLook = c.now()
	c.ledger.look(gap)
	for i, agent := range agents {
		p := c.pulses[agent]
		if c.grown(p, agent, keys[i], values[i]) {
			p.silent, p.garbled, p.deaf = 0, false, 0
		} else {
			p.silent += gap
		}
		if !p.left && p.silent < c.cfg.deadAfter() {
			continue
		}
		delete(c.pulses, agent)
		c.setHere(agent, false)
		if !p.left && c.cfg.lost != nil {
			c.cfg.lost.Add(1)
		}
		switch {
		case p.left:
			c.roster.lost(c.now(), agent, goesLeft)
		case p.garbled:
			c.log.Warn().Str("node", c.roster.name(agent)).Dur("silent_ms",
				p.silent).Msg("heartbeats of a node are replaced or removed by something that is no agent of this job")
			c.roster.lost(c.now(), agent, goesGarbled)
		case p.deaf > c.cfg.deadAfter()/2: // it was alive then
			c.log.Warn().Str("node", c.roster.name(agent)).Dur("silent_ms", p.silent).Msg("a node does not hear the coordinator")
			c.roster.lost(c.now(), agent, goesDeaf)
		default:
			c.log.Warn().Str("node", c.roster.name(agent)).Dur("silent_ms", p.silent).Msg("node lost")
			c.roster.lost(c.now(), agent, goesSilent)
		}
	}
	select { // what we have heard is said at once
	case c.nudge <- struct{}{}:
	default:
	}
	return nil
}

// grown takes in an agent's heartbeat as it stands, and reports whether it is a later one, and answers one of ours that
// is not old. What is older, or was not written by that agent, is silence: somebody may have saved it up.
func (c *coordinator) grown(p *pulse, agent, key string, value []byte) bool {
	if bytes.Equal(value, p.value) {
		p.garbled = p.garbled || p.foreign
		return false
	}
	p.value = value
	var b beat
	writer, err := c.codec.open(key, value, &b)
	if err == nil {
		err = c.codec.by(key, writer, agent)
	}
	p.foreign = err != nil && (writer != c.self || p.joined) // what stands where there was none we have written ourselves
	if p.garbled = p.garbled || p.foreign; err != nil || b.N <= p.n {
		return false
	}
	p.n, p.left = b.N, b.Left
	if agent == c.self || b.Left {
		return true
	}
	if b.To != c.self || !c.ledger.answered(agent, b.Heard) {
		p.deaf = p.silent
		return false
	}
	p.heard = max(p.heard, b.Heard)
	return true
}

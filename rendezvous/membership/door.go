package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/rendezvous"
)

// Nodes that wait while a round runs examine themselves before that round may end for them: alone, or together where
// several wait. The coordinator tells them when, and with whom; their answer is sealed like all that agents say. Those
// in quarantine are not asked before their cool-down is over, unless no round can begin without them.

// doorState is how far a waiting node has come.
type doorState struct {
	looked bool          // it was looked up among those in quarantine
	passed bool          // it was examined, and is fit
	inside bool          // it is being examined
	until  time.Duration // when its cool-down ends, by the coordinator's clock
	why    string        // it is in quarantine
	told   bool          // that it is in quarantine
}

// shut reports whether who wants to join is in quarantine.
func (s *joiner) shut(now time.Duration) bool { return !s.door.passed && s.door.until > now }

// admitted returns those joiners that may be in the next round: all that are not in quarantine.
func (r *roster) admitted(joiners []joiner, now time.Duration) []joiner {
	return slices.DeleteFunc(joiners, func(s joiner) bool { return s.shut(now) })
}

// quarantined begins the words on nodes in quarantine.
const quarantined = "in quarantine: "

// inQuarantine names some of the nodes that are.
func (r *roster) inQuarantine(now time.Duration) (names []string) {
	for _, s := range r.waiting {
		if s.shut(now) && len(names) < waitlistNames {
			names = append(names, s.rec.String())
		}
	}
	return names
}

// examinedIn returns which waiting nodes are to be examined, or how long to wait before asking again.
func (r *roster) examinedIn(now time.Duration) (joiners []joiner, wait time.Duration) {
	if !r.doors || r.mixed || r.fixed || r.phase == phaseOver {
		return nil, never
	}
	wait = never
	needed := false // no round can begin without those in quarantine
	if r.phase == phaseGather && len(r.missing()) == 0 {
		free := r.target(len(r.admitted(slices.Clone(r.waiting), now)))
		needed = free == 0 && r.target(len(r.waiting)) > 0
		if quiet := now - r.lastJoin; needed && quiet < r.lastCall { // others may come
			needed, wait = false, r.lastCall-quiet
		}
	}
	var passed []joiner // they make up a number with the others
	for _, s := range r.waiting {
		if _, ours := r.members[s.rec.Agent]; ours || s.door.inside {
			continue
		}
		switch shut := s.shut(now); {
		case s.door.passed:
			passed = append(passed, s)
		case shut && !needed:
			wait = min(wait, s.door.until-now)
		case shut || r.phase == phaseRun:
			joiners = append(joiners, s)
		}
	}
	if len(joiners) == 0 {
		return nil, wait
	}
	if quiet := now - r.lastJoin; quiet < r.lastCall && r.phase == phaseRun && r.size+len(passed)+len(joiners) < r.most() {
		return nil, min(wait, r.lastCall-quiet) // more may come, and nodes that wait examine each other
	}
	joiners = joiners[:min(len(joiners), mostExamined)]
	return slices.Concat(passed[:min(len(passed), mostExamined-len(joiners))], joiners), 0
}

// mostExamined is how many nodes examine each other at once.
const mostExamined = 256

// edit changes what is known of a waiting node.
func (r *roster) edit(agent string, f func(d *doorState)) {
	for i := range r.waiting {
		if r.waiting[i].rec.Agent == agent {
			f(&r.waiting[i].door)
		}
	}
}

func (r *roster) inside(agent string) bool {
	return slices.ContainsFunc(r.waiting, func(s joiner) bool { return s.rec.Agent == agent && s.door.inside })
}

// room is one examination.
type room struct {
	nonce  string
	agents []string
	silent map[string]bool // those whose word is still to come
	stale  []string        // keys that nobody needs any more when it is over
	cancel context.CancelFunc
}

// foundRecord is what an examination has found of a node.
type foundRecord struct {
	Agent string `json:"agent"`
	Fit   bool   `json:"fit"`
	// Written are the names that it has written on the examination's board: the coordinator deletes them when all have
	// said what they found.
	Written []string `json:"written,omitempty"`
}

func (r *foundRecord) check() error {
	if len(r.Written) > maxWritten || slices.ContainsFunc(r.Written, func(name string) bool { return len(name) > maxLabel }) {
		return fmt.Errorf("it has written %d values", len(r.Written))
	}
	return checkAgent(r.Agent)
}

// maxWritten is how many values an agent may have on the board of an examination: the one that leads it has a plan for
// each round of pairs, and each has a word for each plan.
const maxWritten = 1 << 14

// recall looks whether more nodes were excluded. That the store does not answer is found out elsewhere.
func (c *coordinator) recall(ctx context.Context) {
	if c.cfg.Quarantine <= 0 || !c.roster.doors {
		return
	}
	key := c.keys.job(keyQuarantine)
	limited, cancel := context.WithTimeout(ctx, c.cfg.KeepAlive)
	defer cancel()
	raw, err := glance(limited, c.store.store, key)
	if err != nil || raw == nil || string(raw) == c.recalled {
		return
	}
	var rec quarantineRecord
	if _, err := c.codec.open(key, raw, &rec); err != nil {
		c.log.Debug().Err(err).Msg("what stands in the store of excluded nodes is not believed")
		return
	}
	c.recalled = string(raw)
	c.excluded.learn(rec)
}

// screen finds out which of the nodes that wait are in quarantine.
func (c *coordinator) screen(ctx context.Context) {
	r := c.roster
	if c.cfg.Quarantine <= 0 || !r.doors {
		return
	}
	if c.began.Load() && slices.ContainsFunc(r.waiting, func(s joiner) bool { return !s.door.looked }) {
		c.recall(ctx) // whoever has just been excluded may be back already
	}
	now, clock := c.now(), time.Now()
	for i := range r.waiting {
		s := &r.waiting[i]
		s.door.looked = true
		// A node that was in a round leaves when it is excluded, and one that is being examined says itself what is
		// found.
		if s.rec.Round >= 0 || s.door.passed || s.door.inside {
			continue
		}
		if n := c.excluded.find(clock, s.rec.Node, idsOf(s.rec.IDs)); n != nil {
			s.door.until, s.door.why = now+n.left(clock), n.Reason
		}
	}
}

// doors has waiting nodes examined, and tells those in quarantine.
func (c *coordinator) doors(ctx context.Context) error {
	r, now := c.roster, c.now()
	if !r.doors {
		return nil
	}
	for _, s := range slices.Clone(r.waiting) {
		if s.door.told || !s.shut(now) {
			continue
		}
		r.edit(s.rec.Agent, func(d *doorState) { d.told = true })
		left := (s.door.until - now).Round(time.Second)
		c.log.Warn().Str("node", s.rec.String()).Dur("left_ms", left).Str("reason", shown(s.door.why)).
			Msg("a node that a check has excluded is back: it waits until its quarantine is over")
		if err := c.reply(ctx, s, answer{Wait: &waiting{Job: c.job, Held: left, Why: s.door.why}}); err != nil {
			return err
		}
	}
	if err := c.leaveRoom(ctx); err != nil || c.room != nil {
		return err
	}
	joiners, wait := r.examinedIn(now)
	if wait > 0 || len(joiners) == 0 {
		return nil
	}
	return c.openRoom(ctx, joiners)
}

// openRoom has those examined who want to join.
func (c *coordinator) openRoom(ctx context.Context, joiners []joiner) error {
	examining, cancel := context.WithCancel(ctx)
	in := &room{nonce: newNonce(), silent: map[string]bool{}, cancel: cancel}
	c.room = in
	standard, err := c.standard(ctx)
	if err != nil {
		return err
	}
	var names []string
	for rank, s := range joiners {
		agent := s.rec.Agent
		in.agents, in.silent[agent] = append(in.agents, agent), true
		names = append(names, s.rec.String())
		c.roster.edit(agent, func(d *doorState) { d.inside = true })
		order := doorOrder{Nonce: in.nonce, Round: c.roster.round + 1, Rank: rank, Size: len(joiners), Standard: standard}
		if err := c.reply(ctx, s, answer{Wait: &waiting{Job: c.job, Door: &order}}); err != nil {
			return err
		}
		c.wg.Go(func() { c.awaitFound(examining, in, rank, agent) })
	}
	c.log.Debug().Strs("nodes", names).Msg("nodes that wait are examined")
	return nil
}

// standard is what the check of the round that runs says of its nodes, nil for nothing.
func (c *coordinator) standard(ctx context.Context) ([]byte, error) {
	nonce := c.nonces[c.roster.round]
	if c.roster.phase != phaseRun || nonce == "" {
		return nil, nil
	}
	key := c.keys.round(roundID{c.roster.round, nonce}, onBoard+rendezvous.StandardKey)
	raw, err := peek(ctx, c.store.store, key)
	if err != nil || raw == nil {
		return nil, err
	}
	body, _, err := c.codec.openBytes(key, raw)
	if err != nil || len(body) > rendezvous.MaxStandard {
		c.log.Debug().Err(err).Msg("what newcomers are to be compared with is not believed")
		return nil, nil
	}
	return body, nil
}

// awaitFound waits for what an examination has found of one of its nodes.
func (c *coordinator) awaitFound(ctx context.Context, in *room, rank int, agent string) {
	key := c.keys.door(c.term, in.nonce, fmt.Sprint("found/", rank))
	var rec foundRecord
	err := insist(ctx, c.cfg.lookEvery(), func() error {
		rec = foundRecord{}
		writer, err := c.store.get(ctx, key, &rec)
		if err == nil && rec.Agent != agent {
			err = &untrusted{errors.New("another agent has written it")}
		}
		if err == nil {
			err = c.codec.by(key, writer, agent)
		}
		return err
	})
	if err != nil {
		return // the room is closed, or the store is lost
	}
	_ = c.tell(ctx, func() {
		delete(in.silent, agent)
		in.stale = append(in.stale, key)
		for _, name := range rec.Written {
			in.stale = append(in.stale, c.keys.door(c.term, in.nonce, onBoard+name))
		}
		c.roster.edit(agent, func(d *doorState) { d.inside, d.passed = false, rec.Fit })
		if !rec.Fit { // it leaves
			c.roster.drop(agent)
		}
	})
}

// leaveRoom ends an examination that is over, or one of whose nodes has gone: the others would wait for it, and blame
// it.
func (c *coordinator) leaveRoom(ctx context.Context) error {
	in := c.room
	if in == nil {
		return nil
	}
	gone := slices.ContainsFunc(in.agents, func(agent string) bool { return in.silent[agent] && !c.roster.inside(agent) })
	if len(in.silent) > 0 && !gone {
		return nil
	}
	in.cancel()
	c.room = nil
	for _, s := range slices.Clone(c.roster.waiting) {
		if !slices.Contains(in.agents, s.rec.Agent) {
			continue
		}
		c.roster.edit(s.rec.Agent, func(d *doorState) { d.inside = false })
		if err := c.reply(ctx, s, answer{Wait: &waiting{Job: c.job}}); err != nil {
			return err
		}
	}
	stale := in.stale
	c.wg.Go(func() { _ = c.store.remove(ctx, stale...) }) // where it fails the store is lost
	return nil
}

func idsOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

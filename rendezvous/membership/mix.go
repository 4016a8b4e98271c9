package membership

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"muster/rendezvous"
)

// mix is the coordinator's part in rounds that agents of torchrun take part in. One goroutine speaks to the Bridge from
// the meeting of a round to its end.
type mix struct {
	busy    bool // a round with others meets or runs
	cancel  context.CancelCauseFunc
	letGo   context.CancelFunc // ends the time in which the peers are kept alive between two rounds
	done    chan struct{}      // closed when the goroutine of the last round has ended
	changed chan struct{}
	count   int // of waiting nodes, as the bridge was told last

	mu      sync.Mutex
	waiting []Peer
	joiners map[string]joiner // of the nodes that wait, by agent
}

// errRoundOver is the cause of a mixed round's end where the verdict came from our side.
var errRoundOver = errors.New("the round is over")

// errPassed says that all workers of ours have succeeded.
var errPassed = errors.New("all workers have succeeded")

// overError ends a round with others by a verdict.
type overError struct{ verdict rendezvous.Verdict }

// final reports whether no round follows.
func (e *overError) final() bool {
	return e.verdict.Kind == rendezvous.Succeed || e.verdict.Kind == rendezvous.Fail
}

func (e *overError) Error() string { return "verdict: " + string(e.verdict.Kind) }

// over ends the round with others, if one runs.
func (m *mix) over(v rendezvous.Verdict) {
	if m.busy {
		m.cancel(&overError{v})
		m.busy = false
	}
}

// awaitOthers notices when an agent of torchrun comes.
func (c *coordinator) awaitOthers(ctx context.Context) error {
	if err := c.bridge.Appeared(ctx); err != nil {
		return err
	}
	return c.tell(ctx, func() {
		c.log.Warn().Msg("an agent of torchrun takes part: rounds follow its protocol, and if the host of the store dies, the job ends")
		c.roster.mixed, c.roster.quorum = true, false
		c.mix.changed = make(chan struct{}, 1)
		if c.roster.phase == phaseRun && !c.roster.proposed && !c.roster.fixed { // where ranks are fixed, one of ours has this one
			c.roster.propose(rendezvous.Verdict{
				Kind: rendezvous.Reassemble, Reason: "ScaleUp", Rank: -1,
				Message: "an agent of torchrun wants to join",
			})
		}
	})
}

// mixing begins a meeting with others when it is time, and keeps the bridge informed about who is there.
func (c *coordinator) mixing(ctx context.Context, failed chan<- error) {
	r, m := c.roster, &c.mix
	if r.phase == phaseOver {
		m.over(r.verdict)
	}
	if !r.mixed || r.phase != phaseGather {
		return
	}
	joiners, peers := map[string]joiner{}, make([]Peer, 0, len(r.waiting))
	for _, s := range r.waiting {
		joiners[s.rec.Agent] = s
		peers = append(peers, peer(s))
	}
	m.mu.Lock()
	m.joiners, m.waiting = joiners, peers
	m.mu.Unlock()
	if m.busy {
		if m.count != len(peers) {
			m.count = len(peers)
			select {
			case m.changed <- struct{}{}:
			default: // it has not looked yet
			}
		}
		return
	}
	if r.meetIn(c.now()) > 0 {
		return
	}
	before := m.done
	if before != nil {
		m.letGo()
	}
	round, cancel := context.WithCancelCause(ctx)
	holding, letGo := context.WithCancel(ctx)
	m.busy, m.cancel, m.letGo, m.done, m.count = true, cancel, letGo, make(chan struct{}), len(peers)
	number, done := r.last+1, m.done
	c.background(ctx, failed, func(ctx context.Context) error {
		defer close(done)
		if before != nil {
			<-before // one call of the bridge at a time
		}
		return c.withOthers(ctx, round, holding, number)
	})
}

func peer(s joiner) Peer {
	return Peer{Agent: s.rec.Agent, Addr: s.rec.Addr, Role: s.rec.Role, Workers: s.rec.Workers, NodeRank: s.rec.NodeRank}
}

func (m *mix) peers() []Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting
}

// withOthers is one round with agents of torchrun; round ends with the verdict on it, holding when the next one begins.
func (c *coordinator) withOthers(ctx, round, holding context.Context, number int) error {
	b := c.bridge
	prepared := map[string]int{}
	id := roundID{number, newNonce()}
	master := func(ctx context.Context, agent string, served bool) (string, int, error) {
		return c.prepare(ctx, preparation{id.number, id.nonce, !served}, agent, prepared)
	}
	joined, err := b.Join(round, c.mix.peers, c.mix.changed, master)
	if over, ok := errors.AsType[*rendezvous.OverError](err); ok {
		return c.tell(ctx, func() { c.mix.busy = false; c.roster.phase, c.roster.verdict = phaseOver, over.Verdict })
	}
	if err != nil {
		if round.Err() != nil {
			return c.partFrom(ctx, round)
		}
		return fmt.Errorf("cannot meet the agents of torchrun: %w", err)
	}
	began := make(chan error, 1)
	if err := c.tell(ctx, func() { began <- c.beginMixed(ctx, id, joined, prepared) }); err != nil {
		return err
	}
	select {
	case err := <-began:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	peers := func() []Peer { return c.stillHere(joined) }
	v, err := c.stay(ctx, round, id, peers)
	if err != nil {
		return err
	}
	if round.Err() == nil {
		if err := c.tell(ctx, func() {
			if !c.roster.proposed {
				c.roster.propose(v)
			}
		}); err != nil {
			return err
		}
	}
	// Until the verdict is heard, and after it until the next meeting, our nodes stay alive for the others.
	hold, cancel := context.WithCancel(holding)
	defer cancel()
	stop := context.AfterFunc(round, func() {
		if by, ok := errors.AsType[*overError](context.Cause(round)); ok && by.final() {
			cancel()
		}
	})
	defer stop()
	if err := b.Hold(hold, peers); err != nil && hold.Err() == nil {
		c.log.Warn().Err(err).Msg("our nodes not kept alive for the agents of torchrun")
	}
	if round.Err() != nil {
		return c.partFrom(ctx, round)
	}
	return nil
}

// stay is the time in which workers run. It returns how the round is to end, as far as that is not decided already.
func (c *coordinator) stay(ctx, round context.Context, id roundID, peers func() []Peer) (rendezvous.Verdict, error) {
	b := c.bridge
	staying, stop := context.WithCancelCause(round)
	defer stop(errRoundOver)
	c.wg.Go(func() {
		if _, err := c.store.await(staying, c.keys.round(id, "passed"), c.cfg.lookEvery(), &noteRecord{}); err == nil {
			stop(errPassed)
		}
	})
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "PeersChanged", Rank: -1}
	reason, err := b.Stay(staying, peers, c.mix.changed)
	v.Message = reason
	if round.Err() == nil && errors.Is(context.Cause(staying), errPassed) {
		err = b.Barrier(round, peers, c.mix.changed)
		if err == nil {
			return succeeded(), nil
		}
		v.Message = err.Error()
		if _, over := errors.AsType[*rendezvous.OverError](err); !over && !errors.Is(err, rendezvous.ErrStoreClosed) {
			return v, nil // the round has ended instead: another one follows
		}
	}
	if over, ok := errors.AsType[*rendezvous.OverError](err); ok {
		return over.Verdict, nil
	}
	if err != nil && round.Err() == nil && ctx.Err() == nil {
		return v, fmt.Errorf("cannot stay with the agents of torchrun: %w", err)
	}
	return v, nil
}

// partFrom ends the job for the others where the verdict ended it for us.
func (c *coordinator) partFrom(ctx, round context.Context) error {
	by, ok := errors.AsType[*overError](context.Cause(round))
	if !ok || !by.final() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.CloseTimeout)
	defer cancel()
	if err := c.bridge.Close(ctx); err != nil {
		c.log.Warn().Err(err).Msg("agents of torchrun not told that the job has ended")
	}
	return nil
}

// prepare has the node that gets rank 0 empty its store, or find a free port.
func (c *coordinator) prepare(ctx context.Context, p preparation, agent string, prepared map[string]int) (string, int, error) {
	c.mix.mu.Lock()
	s, ok := c.mix.joiners[agent]
	c.mix.mu.Unlock()
	if !ok {
		return "", 0, fmt.Errorf("agent %s has left", agent)
	}
	if port, done := prepared[agent]; done {
		return s.rec.Addr, port, nil
	}
	if err := c.reply(ctx, s, answer{Prepare: &p}); err != nil {
		return "", 0, err
	}
	var open openRecord
	if _, err := c.store.await(ctx, c.keys.round(p.id(), "open"), c.cfg.lookEvery(), &open); err != nil {
		return "", 0, err
	}
	prepared[agent] = open.Port
	return s.rec.Addr, open.Port, nil
}

// beginMixed tells our nodes their places among the others.
func (c *coordinator) beginMixed(ctx context.Context, id roundID, j Joined, prepared map[string]int) error {
	r := c.roster
	var joiners []joiner
	var places []assignment
	var ranks []int
	var exit []string
	if j.Others > 0 {
		exit = j.Exit
	}
	open := true // by whom the store for workers is emptied: by a node of ours, which was prepared, or by nobody
	for _, p := range j.Places {
		ticket, waits := r.tickets[p.Agent]
		if !waits {
			continue // it died meanwhile; the others will notice
		}
		for _, s := range r.waiting {
			if s.ticket == ticket {
				joiners, ranks = append(joiners, s), append(ranks, p.Rank)
			}
		}
		_, ready := prepared[p.Agent]
		open = open && !ready
		places = append(places, assignment{
			Rank: p.Rank, Size: j.Size, BaseRank: p.BaseRank, World: j.World, BaseRoleRank: p.BaseRoleRank, RoleWorld: p.RoleWorldSize,
			MasterAddr: j.MasterAddr, MasterPort: j.MasterPort, AgentStore: j.AgentStore, Mixed: j.Others > 0, Exit: exit,
		})
	}
	if open {
		if err := c.store.set(ctx, c.keys.round(id, "open"), openRecord{}); err != nil {
			return err
		}
	}
	if len(joiners) == 0 {
		return nil
	}
	c.logOrder(id.number, j.World, j.Names)
	r.begun(id.number, j.Size, joiners, ranks)
	return c.assign(ctx, id, joiners, places)
}

// stillHere are the nodes of ours in a round that have not gone.
func (c *coordinator) stillHere(j Joined) []Peer {
	c.mix.mu.Lock()
	joiners := c.mix.joiners
	c.mix.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var peers []Peer
	for _, p := range j.Places {
		if s, ok := joiners[p.Agent]; ok && c.here[p.Agent] {
			peers = append(peers, peer(s))
		}
	}
	return peers
}

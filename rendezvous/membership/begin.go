package membership

import (
	"context"
	"fmt"
	"slices"
)

// begin tells every node of a round its place.
func (c *coordinator) begin(ctx context.Context, b *beginning) error {
	if err := c.abandoned(ctx); err != nil {
		return err
	}
	if c.goneTo != "" {
		return c.sendBack(ctx, b.joiners)
	}
	places := make([]assignment, len(b.joiners))
	world, roles := 0, map[string]int{}
	for i, s := range b.joiners {
		places[i] = assignment{Rank: i, BaseRank: world, BaseRoleRank: roles[s.rec.Role]}
		world += s.rec.Workers
		roles[s.rec.Role] += s.rec.Workers
	}
	first := b.joiners[0].rec
	for i, s := range b.joiners {
		places[i].World, places[i].RoleWorld, places[i].Size = world, roles[s.rec.Role], len(b.joiners)
		places[i].MasterAddr, places[i].MasterPort, places[i].AgentStore = first.Addr, first.Port, true
	}
	names := make([]string, len(b.joiners))
	for i, s := range b.joiners {
		names[i] = s.rec.Addr
	}
	c.logOrder(b.number, world, names)
	return c.assign(ctx, roundID{b.number, newNonce()}, b.joiners, places)
}

// assign writes the answers of a round that begins, and waits for its verdict from now on.
func (c *coordinator) assign(ctx context.Context, id roundID, joiners []joiner, places []assignment) error {
	if err := c.inLead(ctx); err != nil { // what another coordinator begins is another world
		return err
	}
	workers, last := 0, noRound
	for _, s := range joiners {
		workers += s.rec.Workers
		if c.began.Load() || s.rec.Job == "" || s.rec.Round <= last {
			continue
		}
		if last = s.rec.Round; c.job == "" { // those who were in it know
			c.job = s.rec.Job
		}
	}
	if c.job == "" {
		c.job = newNonce()
	}
	if c.hosted == "" && !c.cfg.Durable { // the host may have come after us; it leaves last, whether the store can move or not
		var host hostRecord
		if _, err := c.store.peek(ctx, c.keys.job("host"), &host); storeFailed(err) {
			return err
		} else if err == nil {
			c.setHosted(host.Agent)
		}
	}
	var standbys []standby
	if c.hosted != "" && !c.roster.mixed && c.cfg.Failover {
		standbys = c.standbys(joiners)
	}
	c.successors = standbys
	// Who follows us as coordinator reads whom to wait for; nobody else does.
	roll := rollRecord{
		Job: c.job, Nonce: id.nonce, Round: id.number, Size: places[0].Size, Restarts: c.roster.restarts,
		Replacements: c.roster.replacements,
	}
	answers, lostOf := make([]record, len(joiners)), c.roster.lostOf.String()
	agents, heard := make([]string, len(joiners)), make([]int64, len(joiners))
	lead, hostRank := noRank, noRank
	var leadNode, hostNode nodeID
	takes := map[string]bool{}
	for i, s := range joiners {
		takes[s.rec.Agent] = true
		if s.rec.Agent == c.self {
			lead, leadNode = places[i].Rank, nodeID{s.rec.Node, s.rec.Addr}
		}
		if s.rec.Agent == c.hosted {
			hostRank, hostNode = places[i].Rank, nodeID{s.rec.Node, s.rec.Addr}
		}
	}
	for i, s := range joiners {
		a := &places[i]
		a.Job, a.Nonce, a.Round, a.Agents, a.Workers, a.AgentRank, a.Standbys, a.Host = c.job, id.nonce, id.number,
			len(joiners), workers, i,
			standbys, c.hosted
		a.Min, a.Max = c.cfg.Min, c.cfg.Max
		a.Restarts, a.Replacements, a.LostOf = c.roster.restarts, c.roster.replacements, lostOf
		a.Orders = c.roster.orders
		a.LeadRank, a.HostRank, a.LeadNode, a.HostNode = lead, hostRank, leadNode, hostNode
		_, waits := c.roster.tickets[s.rec.Host]
		a.HostLost = s.rec.Host != "" && !takes[s.rec.Host] && !waits
		agents[i] = s.rec.Agent
		if p := c.pulses[s.rec.Agent]; p != nil {
			a.Heard, heard[i] = p.heard, p.heard
		}
		roll.Members = append(roll.Members, rollMember{s.rec.Agent, a.Rank, s.rec.Node, s.rec.Addr})
		answers[i] = c.answering(s, answer{Begin: a})
	}
	c.ledger.begin(id.nonce, agents, heard)
	c.nonces[id.number] = id.nonce
	delete(c.nonces, id.number-2)
	if err := c.store.set(ctx, c.keys.job("members"), roll); err != nil {
		return err
	}
	c.decideOn(ctx, id) // the agent in this process looks for it when it has its answer
	if err := c.store.setAll(ctx, answers); err != nil {
		return err
	}
	c.began.Store(true)
	c.tidy(ctx, id, joiners)
	return nil
}

// tidy deletes what was written for the round before the last one, and is not its agents' own: nobody reads it any
// more.
func (c *coordinator) tidy(ctx context.Context, id roundID, joiners []joiner) {
	old := c.stale[0]
	c.stale[0], c.stale[1] = c.stale[1], []string{
		c.keys.round(id, "verdict"), c.keys.round(id, "open"), c.keys.round(id, "agreed"),
		c.keys.round(id, keyDecided), c.keys.round(id, keySettled),
	}
	for _, s := range joiners {
		c.stale[1] = append(c.stale[1], c.ticketKeys(s.ticket)...)
	}
	c.wg.Go(func() { _ = c.store.remove(ctx, old...) }) // where it fails the store is lost
}

// maxStandbys is how many agents the store may move to, one after the other.
const maxStandbys = 32

func (c *coordinator) standbys(joiners []joiner) []standby {
	var standbys []standby
	for _, s := range joiners {
		if s.rec.Agent != c.hosted && s.rec.Port > 0 && len(standbys) < maxStandbys {
			standbys = append(standbys, standby{s.rec.Agent, s.rec.String(), joinHostPort(s.rec.Addr, s.rec.Port)})
		}
	}
	return standbys
}

// logOrder logs which address has which rank.
func (c *coordinator) logOrder(number, world int, names []string) {
	const most = 64
	l := c.log.Debug().Int("round", number).Int("group_world_size", len(names)).Int("world_size", world)
	if len(names) > most {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
	}
	l.Strs("addresses_by_rank", names).Msg("round begins")
}

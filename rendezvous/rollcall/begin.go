package rollcall

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"muster/rendezvous"
)

// begin tells every node of a round its place.
func (c *coordinator) begin(ctx context.Context, b *beginning) error {
	if err := c.abandoned(ctx); err != nil {
		return err
	}
	if c.goneTo != "" {
		return c.sendBack(ctx, b.seats)
	}
	places := make([]assignment, len(b.seats))
	world, roles := 0, map[string]int{}
	for i, s := range b.seats {
		places[i] = assignment{Rank: i, BaseRank: world, BaseRoleRank: roles[s.rec.Role]}
		world += s.rec.Workers
		roles[s.rec.Role] += s.rec.Workers
	}
	first := b.seats[0].rec
	for i, s := range b.seats {
		places[i].World, places[i].RoleWorld, places[i].Size = world, roles[s.rec.Role], len(b.seats)
		places[i].MasterAddr, places[i].MasterPort, places[i].AgentStore = first.Addr, first.Port, true
	}
	names := make([]string, len(b.seats))
	for i, s := range b.seats {
		names[i] = s.rec.Addr
	}
	c.logOrder(b.number, world, names)
	return c.assign(ctx, b.number, b.seats, places, c.answerKey)
}

// assign writes the answers of a round that begins, and waits for its verdict from now on.
func (c *coordinator) assign(ctx context.Context, number int, seats []seat, places []assignment, key func(ticket int64) string) error {
	workers := 0
	for _, s := range seats {
		workers += s.rec.Workers
	}
	if c.hosted == "" && !c.cfg.Durable { // the host may have come after us; it leaves last, whether the store can move or not
		host, err := peek(ctx, c.store, c.keys.job("host"))
		if err != nil {
			return err
		}
		c.hosted = string(host)
		c.roster.quorum = c.hosted != "" && c.cfg.Failover && !c.roster.mixed
	}
	var heirs []heir
	if c.hosted != "" && !c.roster.mixed && c.cfg.Failover {
		heirs = c.heirs(seats)
	}
	c.successors = heirs
	// Who follows us in office reads whom to wait for; nobody else does.
	roll := rollRecord{Round: number, Size: places[0].Size, Restarts: c.roster.restarts, Replacements: c.roster.replacements}
	pairs := make([]rendezvous.Pair, len(seats))
	for i, s := range seats {
		a := &places[i]
		a.Round, a.Company, a.Workers, a.Heirs, a.Host = number, len(seats), workers, heirs, c.hosted
		a.Min, a.Max = c.cfg.Min, c.cfg.Max
		a.Restarts, a.Replacements = c.roster.restarts, c.roster.replacements
		roll.Members = append(roll.Members, rollMember{s.rec.Agent, a.Rank, s.rec.String()})
		pairs[i] = rendezvous.Pair{Key: key(s.ticket), Value: c.codec.seal(key(s.ticket), answer{Begin: a})}
	}
	if err := c.store.Set(ctx, c.keys.job("members"), c.codec.seal(c.keys.job("members"), roll)); err != nil {
		return err
	}
	if err := setAll(ctx, c.store, pairs); err != nil {
		return err
	}
	c.began.Store(true)
	c.tidy(ctx, number, seats)
	c.wg.Go(func() { c.awaitVerdict(ctx, number) })
	return nil
}

// tidy deletes what was written for the round before the last one: nobody reads it any more.
func (c *coordinator) tidy(ctx context.Context, number int, seats []seat) {
	old := c.litter[0]
	c.litter[0], c.litter[1] = c.litter[1], c.roundKeys(number)
	for _, s := range seats {
		c.litter[1] = append(c.litter[1], c.keys.join(c.term, s.ticket), c.answerKey(s.ticket), c.answerKey(s.ticket)+"/2")
	}
	c.wg.Go(func() {
		for _, key := range old {
			if _, err := c.store.Delete(ctx, key); err != nil {
				return
			}
		}
	})
}

// roundKeys are the keys of a round.
func (c *coordinator) roundKeys(number int) []string {
	var keys []string
	for _, name := range []string{"open", "verdict", "ended", "stopped", "reports", "reported", "agreed", "passed"} {
		keys = append(keys, c.keys.round(number, name))
	}
	for n := 1; n <= maxReports; n++ {
		keys = append(keys, c.keys.round(number, "report/"+strconv.Itoa(n)))
	}
	return keys
}

// rollRecord is who is in the round that runs.
type rollRecord struct {
	Round   int          `json:"round"`
	Size    int          `json:"size"`
	Members []rollMember `json:"members"`
	// Restarts and Replacements are those of the job before the round.
	Restarts     int `json:"restarts"`
	Replacements int `json:"replacements"`
}

type rollMember struct {
	Agent string `json:"a"`
	Rank  int    `json:"r"`
	Name  string `json:"n"`
}

// maxHeirs is how many agents the store may move to, one after the other.
const maxHeirs = 32

func (c *coordinator) heirs(seats []seat) []heir {
	var heirs []heir
	for _, s := range seats {
		if s.rec.Agent != c.hosted && s.rec.Port > 0 && len(heirs) < maxHeirs {
			heirs = append(heirs, heir{s.rec.Agent, s.rec.String(), joinHostPort(s.rec.Addr, s.rec.Port)})
		}
	}
	return heirs
}

// logOrder logs which address has which rank.
func (c *coordinator) logOrder(number, world int, names []string) {
	const most = 64
	l := c.log.Info().Int("round", number).Int("group_world_size", len(names)).Int("world_size", world)
	if len(names) > most {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
	}
	l.Strs("addresses_by_rank", names).Msg("round begins")
}

package rollcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// wish joins, and waits for the place. prepared says that the store for workers was emptied on the way.
func (h *Handler) wish(ctx context.Context, m rendezvous.Member) (place assignment, prepared bool, err error) {
	rec := joinRecord{
		Agent: h.id, Node: h.cfg.Node, Addr: h.cfg.Addr, Role: m.Role, Workers: m.LocalWorldSize, NodeRank: h.cfg.NodeRank,
		Min: h.cfg.Min, Max: h.cfg.Max, Checks: h.cfg.Checks,
		Round: h.last.Round, Rank: h.last.Rank, Size: h.last.Size, Restarts: h.last.Restarts, Replacements: h.last.Replacements,
	}
	if h.cfg.Workers != nil {
		rec.Port = h.cfg.Workers.Port()
	}
	if h.round != nil && h.round.cut { // from now on we may be in a round that we do not know of, so we have no other vote
		h.round.cut, h.ballot = false, h.conn
	}
	rec.Voter = h.ballot != nil && h.ballot == h.conn
	if !h.wished {
		ended := false
		if h.coord == nil {
			_, final, err := h.lastRound(ctx)
			if err != nil {
				return place, false, err
			}
			ended = final != nil
		}
		h.wished, h.waited = true, !ended
	}
	// The heartbeat is there before the coordinator can look for it.
	sent := time.Now()
	h.session.says(sent)
	if err := h.conn.Set(ctx, h.keys.beat(h.id), h.heartbeat(-1, noRound)); err != nil {
		return place, false, err
	}
	h.session.answered(sent)
	ticket, err := h.conn.Add(ctx, h.keys.term(h.term, "tickets"), 1)
	if err != nil {
		return place, false, err
	}
	key := h.keys.join(h.term, ticket)
	if err := h.conn.Set(ctx, key, h.codec.seal(key, rec)); err != nil {
		return place, false, err
	}
	key = h.keys.answer(h.term, ticket)
	for {
		value, err := h.conn.Get(ctx, key)
		if err != nil {
			return place, false, err
		}
		var a answer
		if err := h.codec.open(key, value, &a); err != nil {
			return place, false, errhint.Code(err, errhint.Usage)
		}
		switch {
		case a.Prepare != nil:
			port, err := h.cfg.prepare(*a.Prepare)
			if err == nil {
				err = h.conn.Set(ctx, h.keys.round(a.Prepare.Round, "open"), []byte(strconv.Itoa(port)))
			}
			if err != nil {
				return place, false, err
			}
			key, prepared = key+"/2", true
		case a.Elsewhere != "":
			h.cfg.At, h.cfg.Place = a.Elsewhere, "the store at "+shown(a.Elsewhere)
			h.cfg.Hosts, h.host = false, "" // who hosts it we learn there
			h.left = slices.DeleteFunc(slices.Clone(h.left), func(at string) bool { return at == a.Elsewhere })
			h.session.lose(errors.New("the job goes on at the store at " + shown(a.Elsewhere)))
			return place, false, errAgain
		case a.Again:
			return place, false, fmt.Errorf("%w: the coordinator has not heard of this node for a while", errAgain)
		case a.Over != nil:
			h.over = true
			return place, false, &rendezvous.OverError{Verdict: *a.Over}
		case a.Begin != nil:
			return *a.Begin, prepared, a.Begin.check()
		default:
			err := fmt.Errorf("cannot join job %q at %s: %s", h.cfg.RunID, h.cfg.Place, a.Refused)
			return place, false, errhint.Code(errhint.With(err, "compare the command lines of the nodes"), errhint.TryAgain)
		}
	}
}

// emptyStore empties this node's store for the workers of a new round.
func (c *Config) emptyStore() {
	if c.Workers != nil {
		c.Workers.Reset()
	}
}

// prepare makes this node ready to have rank 0, and returns the port of the store for workers.
func (c *Config) prepare(p preparation) (port int, err error) {
	if p.Free {
		l, err := net.Listen("tcp", net.JoinHostPort(c.Addr, "0")) //nolint:noctx // it waits for nothing
		if err != nil {
			return 0, fmt.Errorf("cannot find a free port for the workers' store: %w", err)
		}
		_, text, err := net.SplitHostPort(l.Addr().String())
		if err == nil {
			port, err = strconv.Atoi(text)
		}
		return port, errors.Join(err, l.Close())
	}
	c.emptyStore()
	if c.Workers != nil {
		port = c.Workers.Port()
	}
	return port, nil
}

// enter begins a round: rank 0 opens the store for workers, the others wait for that.
func (h *Handler) enter(ctx context.Context, a assignment, prepared bool) (rendezvous.Round, error) {
	h.host, h.last, h.ballot, h.hostLeft = a.Host, a, nil, false
	if a.Min != h.cfg.Min || a.Max != h.cfg.Max {
		h.log.Warn().Int("min_nodes", a.Min).Int("max_nodes", a.Max).Msg("this node was started with another --nnodes than the coordinator, whose one counts")
	}
	r := newRound(h, a) //nolint:contextcheck // a round outlives the call
	err := func() error {
		open := h.keys.round(a.Round, "open")
		if a.Rank == 0 && !prepared && !a.Mixed {
			h.cfg.emptyStore()
			return h.conn.Set(ctx, open, []byte("1"))
		}
		opening, cancel := both(ctx, r.running)
		defer cancel()
		return h.conn.Wait(opening, open)
	}()
	if err != nil {
		if r.running.Err() != nil { // it ended before it began
			r.leave()
			return rendezvous.Round{}, fmt.Errorf("%w: round %d is over", errAgain, a.Round)
		}
		r.leave()
		return rendezvous.Round{}, h.excuse(ctx, err)
	}
	h.round = r
	return a.round(h.cfg.KeepAlive * time.Duration(h.cfg.Attempts)), nil
}

// round is the assignment as the agent sees it.
func (a *assignment) round(notice time.Duration) rendezvous.Round {
	if a.Size == 1 {
		notice = 0
	}
	return rendezvous.Round{
		Number: a.Round, GroupRank: a.Rank, GroupWorldSize: a.Size, BaseRank: a.BaseRank, WorldSize: a.World,
		BaseRoleRank: a.BaseRoleRank, RoleWorldSize: a.RoleWorld, MasterAddr: a.MasterAddr, MasterPort: a.MasterPort,
		AgentStore: a.AgentStore, Restarts: a.Restarts, Replacements: a.Replacements, LossNotice: notice,
	}
}

// check refuses a place that no coordinator of ours would give.
func (a *assignment) check() error {
	if a.Round < 0 || a.Size < 1 || a.Rank < 0 || a.Rank >= a.Size || a.BaseRank < 0 || a.World <= a.BaseRank || a.BaseRoleRank < 0 ||
		a.RoleWorld <= a.BaseRoleRank || a.MasterAddr == "" || a.MasterPort < 0 || a.MasterPort > 65535 || a.Company < 1 || a.Workers < 1 ||
		a.Restarts < 0 || a.Replacements < 0 || len(a.Heirs) > maxHeirs {
		return fmt.Errorf("cannot use the place that the coordinator gave: %+v", *a)
	}
	return nil
}

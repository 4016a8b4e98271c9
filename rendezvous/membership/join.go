package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// wish joins, and waits for the place. prepared says that the store for workers was emptied on the way.
func (h *Handler) wish(ctx context.Context, m rendezvous.Member) (place assignment, prepared bool, err error) {
	rec := joinRecord{
		Agent: h.id, Wish: newNonce(), Node: h.cfg.Node, Addr: h.cfg.Addr, Role: m.Role, Workers: m.LocalWorldSize,
		NodeRank: h.cfg.NodeRank, Prefers: h.cfg.Prefers,
		Min: h.cfg.Min, Max: h.cfg.Max, Checks: h.cfg.Checks, IDs: strings.Join(h.cfg.IDs, ","),
		Round: h.last.Round, RoundJob: h.last.Job, Rank: h.last.Rank, Size: h.last.Size, Agents: h.last.Agents,
		Restarts: h.last.Restarts, Replacements: h.last.Replacements,
		LostOf: h.last.LostOf, Host: h.last.Host, HostRank: h.last.HostRank, Hosts: h.host == h.id, Orders: h.last.Orders,
	}
	if h.last.Round < 0 {
		rec.Wants = h.cfg.Wants
	}
	if h.hostLeft { // that is no loss
		rec.Host = ""
	}
	if h.round != nil {
		rec.Restarts = max(rec.Restarts, h.round.restarts)
		rec.Orders.Learn(h.round.orders)
	}
	if h.cfg.Workers != nil {
		rec.Port = h.cfg.Workers.Port()
	}
	if h.round != nil && h.round.cut { // from now on we may be in a round that we do not know of, so we have no other vote
		h.round.cut, h.ballot, h.asks = false, h.conn, h.term
	}
	rec.Voter = h.ballot != nil && h.ballot == h.conn
	// The heartbeat is there before the coordinator can look for it.
	if err := h.session.sendBeat(ctx, h.conn); err != nil {
		return place, false, err
	}
	ctx, door := h.atDoor(ctx)
	defer door.close()
	for unheard := 0; ; {
		a, heard, err := h.ask(ctx, rec, door, &prepared)
		if unheard++; heard {
			unheard = 0
		}
		switch {
		case err != nil:
			return place, false, door.reason(err)
		case unheard >= mostUnheard:
			err := fmt.Errorf("cannot join job %q at %s: %w, asked %d times", h.cfg.RunID, h.cfg.Place, errUnanswered, unheard)
			return place, false, errhint.Code(errhint.With(err, foreignHint), errhint.TryAgain)
		case a == nil:
			if h.overtaken(ctx) {
				return place, false, fmt.Errorf("%w: another node has the leadership by now", errAgain)
			}
			h.log.Debug().Msg("no answer from the coordinator; asking it again")
		case a.Elsewhere != "":
			if a.Unbegun && h.round != nil && h.ballot == h.conn && h.asks == h.term { // we are in no round that we do not know of
				h.round.cut, h.ballot = true, nil
			}
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
			return *a.Begin, prepared, nil
		default:
			err := fmt.Errorf("cannot join job %q at %s: %s", h.cfg.RunID, h.cfg.Place, shown(a.Refused))
			return place, false, errhint.Code(errhint.With(err, "compare the command lines of the nodes"), errhint.TryAgain)
		}
	}
}

// overtaken reports whether a later term has begun than that of the coordinator which we ask. It may have begun after we
// had read which one it is, and before we read whose. Who led before may live, and then its heartbeats do not end.
func (h *Handler) overtaken(ctx context.Context) bool {
	var now termRecord
	_, err := h.conn.glance(ctx, h.keys.job("term"), &now)
	return err == nil && now.Term > h.term.term
}

const (
	// mostUnheard is how many tickets in a row are drawn to which no answer comes, though the coordinator lives.
	mostUnheard = 15
	// foreignHint is for what somebody else must have done.
	foreignHint = "something else changes what this job's agents write to the store: does another program use it, or can strangers reach " +
		"its port?"
)

// ask draws a ticket and returns the answer that ends it, nil where none comes for so long that the coordinator has not
// heard of the ticket or its answer was taken away: another one is to be drawn then. heard says that any answer came.
func (h *Handler) ask(ctx context.Context, rec joinRecord, door *doorway, prepared *bool) (_ *answer, heard bool, _ error) {
	rec.Job = h.job
	h.asked = time.Now()
	limit := h.cfg.deadAfter()
	drawing, cancel := context.WithTimeoutCause(ctx, limit, errUnanswered)
	ticket, err := h.ticket(drawing, rec)
	cancel()
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, errUnanswered): // somebody sets the counter back all the time
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	for n := 1; ; n++ {
		var a answer
		waiting, cancel := context.WithTimeoutCause(ctx, limit, errUnanswered)
		err := h.await(waiting, h.keys.answer(h.term, ticket, n), rec.Wish, &a)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, errUnanswered):
			return nil, heard, nil
		case err != nil:
			return nil, heard, err
		case a.Wait != nil:
			if a.Wait.Job != "" {
				h.job = a.Wait.Job
			}
			limit = 5 * h.cfg.deadAfter()
			door.hear(a.Wait) //nolint:contextcheck // an examination lasts longer than one ticket, and has the context of the whole wait
		case a.Prepare != nil:
			port, err := h.cfg.prepare(*a.Prepare)
			if err == nil {
				err = h.conn.set(ctx, h.keys.round(a.Prepare.id(), "open"), openRecord{port})
			}
			if err != nil {
				return nil, true, err
			}
			*prepared, limit = true, 5*h.cfg.deadAfter()
		default:
			return &a, true, nil
		}
		heard = true
	}
}

// errUnanswered is the cause of the end of a wait for an answer.
var errUnanswered = errors.New("the coordinator does not answer")

// await waits for an answer to this agent's wish. An answer to somebody else, of an earlier job perhaps, or to an
// earlier wish is none.
func (h *Handler) await(ctx context.Context, key, wish string, a *answer) error {
	return insist(ctx, h.cfg.lookEvery(), func() error {
		*a = answer{}
		writer, err := h.conn.get(ctx, key, a)
		switch {
		case err != nil:
		case a.Agent != h.id:
			err = &untrusted{fmt.Errorf("cannot trust %q in the store: it answers agent %s", key, a.Agent)}
		case a.Wish != wish:
			err = &untrusted{fmt.Errorf("cannot trust %q in the store: it answers what this node has asked before", key)}
		}
		if err == nil {
			err = h.codec.by(key, writer, h.session.ledBy())
		}
		return err
	})
}

// ticket draws a ticket and writes rec on it.
func (h *Handler) ticket(ctx context.Context, rec joinRecord) (int64, error) {
	counter := h.keys.term(h.term, "tickets")
	if h.mistrust { // a store closes the connection of who counts up what is no number
		if _, err := h.conn.drawn(ctx, counter, 0); err != nil {
			return 0, err
		}
	}
	key := func(n int64) string { return h.keys.join(h.term, n) }
	n, err := deposit(ctx, h.conn, counter, key, rec, h.cfg.lookEvery())
	h.mistrust = isClosed(err)
	return n, err
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
	before := h.last.HostNode
	h.host, h.last, h.ballot, h.hostLeft, h.job = a.Host, a, nil, false, a.Job
	h.namePlace()
	if a.Min != h.cfg.Min || a.Max != h.cfg.Max {
		h.log.Warn().Int("min_nodes", a.Min).Int("max_nodes",
			a.Max).Msg("this node was started with another --nnodes than the coordinator, whose one counts")
	}
	r := newRound(h, a) //nolint:contextcheck // a round outlives the call
	h.tidy(h.session, r)
	err := func() error {
		open := r.key("open")
		if prepared {
			r.noted(open)
			r.insistOn(open, openRecord{})
		}
		if a.Rank == 0 && !prepared && !a.Mixed {
			h.cfg.emptyStore()
			r.insistOn(open, openRecord{})
			return r.say(ctx, open, openRecord{})
		}
		opening, cancel := both(ctx, r.running)
		defer cancel()
		_, err := h.conn.await(opening, open, r.pause(), &openRecord{})
		return err
	}()
	if err != nil {
		if r.running.Err() != nil { // it ended before it began: nobody is to wait for workers here
			saying, done := context.WithTimeout(ctx, h.cfg.KeepAlive)
			_ = r.Report(saying, nil)
			done()
			r.leave()
			return rendezvous.Round{}, fmt.Errorf("%w: round %d is over", errAgain, a.Round)
		}
		r.leave()
		return rendezvous.Round{}, h.excuse(ctx, err)
	}
	h.round = r
	h.tellRank(a)
	place := a.round(h.cfg.KeepAlive * time.Duration(h.cfg.Attempts))
	place.Exchange = r
	if a.HostLost {
		place.HostLost = before.Host
	}
	return place, nil
}

// namePlace says for people which node serves the store: where that node is lost, the store's address does not tell
// which one it is.
func (h *Handler) namePlace() {
	if a := &h.last; a.HostNode != (nodeID{}) && a.Host != h.id && h.cfg.At != "" {
		h.cfg.Place = "the store at " + shown(h.cfg.At) + " on node " + a.HostNode.String()
		h.session.serves(h.cfg.Place)
	}
}

// round is the assignment as the agent sees it.
func (a *assignment) round(notice time.Duration) rendezvous.Round {
	if a.Size == 1 {
		notice = 0
	}
	return rendezvous.Round{
		Number: a.Round, GroupRank: a.Rank, GroupWorldSize: a.Size, BaseRank: a.BaseRank, WorldSize: a.World,
		BaseRoleRank: a.BaseRoleRank, RoleWorldSize: a.RoleWorld, MasterAddr: a.MasterAddr, MasterPort: a.MasterPort,
		AgentStore: a.AgentStore, Restarts: a.Restarts, Replacements: a.Replacements, Orders: a.Orders, HostRank: a.HostRank,
		LeadRank: a.LeadRank, LossNotice: notice,
	}
}

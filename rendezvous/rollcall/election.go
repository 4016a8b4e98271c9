package rollcall

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// When the host of the store dies, the agents of the last round meet at one of their heirs: every agent goes through
// them in the same order and votes at the first one that it reaches, once its workers have stopped. An heir with the votes
// of more than half of the last round becomes the host. Less than that never goes on, so no two worlds come of one: a host
// that is cut off from more than half stops, too (roster.cutOff).
//
// A vote counts only while its agent is there: an heir that has the votes begins a round only if more than half of the
// last one has joined it.
//
// And it waits until nobody can be left in the last round. A coordinator that is cut off from its majority notices that
// deadAfter after it has seen their last heartbeats, and the store may until then have kept another node alive for as long
// again. Where the host's address refuses connections, its process has ended, and the second half is enough.
//
// Where only answers are lost, one heartbeat more of each voter has arrived than it counts. We rely on it that those did
// not take long.

// voteRecord is a vote, with how long ago the voter may have reached the lost store.
type voteRecord struct {
	Agent  string        `json:"agent"`
	Round  int           `json:"round"`
	Silent time.Duration `json:"silent"`
}

// elect moves the store to one of the heirs. The workers of this agent have stopped.
func (h *Handler) elect(ctx context.Context, cause error) error {
	need := h.last.Company/2 + 1
	_ = h.conn.Close()
	voters := h.last.Company
	if !h.hostLeft {
		voters--
	}
	if voters < need { // without the host there are not enough, whoever is reached
		seeking, cancel := context.WithTimeout(ctx, 2*h.cfg.deadAfter())
		defer cancel()
		if back := h.seekAgain(seeking, h.cfg.At, h.cfg.beatEvery()); back != nil {
			h.conn = back
			return nil
		}
		return h.noQuorum(need, fmt.Errorf("%w; %s too few to decide who goes on", cause, counted(voters, "is", "are")))
	}
	if v := h.lossOf("the node that hosts the store is lost", h.last); v.Kind == rendezvous.Fail {
		return errhint.Code(fmt.Errorf("cannot go on without %s: %w: %s", h.cfg.Place, cause, v.Message), v.Status)
	}
	h.log.Warn().Err(cause).Int("votes_needed", need).Int("group_world_size", h.last.Company).
		Msg("store lost; looking for another host among the nodes of the last round")
	gone := h.hostGone(ctx)
	began := time.Now()
	// A voter may notice the loss as late as a node may be silent after the first one.
	limit := 4 * h.cfg.deadAfter()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%d of %d nodes did not come together within %v", need, h.last.Company, limit))
	defer cancel()
	lost, found := h.whileLost(ctx)
	elected, last := h.vote(lost, need, gone)
	back := found()
	switch {
	case elected != nil:
		if back != nil {
			_ = back.Close()
		}
		h.log.Warn().Str("node", elected.Node).Str("addr", elected.Addr).Dur("dur_ms", time.Since(began)).Msg("store has moved")
		return nil
	case back != nil:
		h.log.Warn().Str("addr", h.cfg.At).Dur("dur_ms", time.Since(began)).Msg("store found again")
		h.conn = back
		return nil
	case context.Cause(ctx) != nil:
		last = context.Cause(ctx)
	}
	return h.noQuorum(need, fmt.Errorf("%w; no other host: %w", cause, last))
}

// errReturned ends a vote: the lost store is there again.
var errReturned = errors.New("the lost store is served again")

// whileLost returns a context that ends when the lost store is served again, then with errReturned; found returns the
// connection to it, nil where there is none, and must be called.
func (h *Handler) whileLost(ctx context.Context) (lost context.Context, found func() Conn) {
	lost, cancel := context.WithCancelCause(ctx)
	var conn Conn
	var wg sync.WaitGroup
	at := h.cfg.At // a vote that succeeds changes it
	wg.Go(func() {
		if conn = h.seekAgain(lost, at, h.cfg.lookEvery()); conn != nil {
			cancel(errReturned)
		}
	})
	return lost, func() Conn { cancel(nil); wg.Wait(); return conn }
}

// vote goes through the heirs until one of them is the host, who is returned, or ctx ends.
func (h *Handler) vote(ctx context.Context, need int, gone bool) (elected *heir, last error) {
	for ctx.Err() == nil {
		for _, heir := range h.last.Heirs {
			if heir.Agent == h.last.Host {
				continue
			}
			conn, err := h.voteAt(ctx, heir, need, gone)
			if err == nil {
				h.left = append(h.left, h.cfg.At)
				h.conn, h.host, h.cfg.At = conn, heir.Agent, heir.Addr
				h.cfg.Place = "the store of " + heir.Node
				return &heir, nil
			}
			if ctx.Err() != nil {
				break
			}
			h.log.Debug().Err(err).Str("node", heir.Node).Msg("no host there")
			last = err
		}
		select {
		case <-time.After(h.cfg.lookEvery()):
		case <-ctx.Done():
		}
	}
	return nil, last
}

// noQuorum is how a job ends here when the store cannot move.
func (h *Handler) noQuorum(need int, why error) error {
	err := fmt.Errorf("cannot go on without %s: of %d nodes in the last round %d must find each other: %w", h.cfg.Place, h.last.Company, need, why)
	err = errhint.With(err, "start the job again on every node; a job of three nodes or more survives its host, and with etcd any node may go")
	return errhint.Code(err, errhint.TryAgain)
}

// voteAt gives an heir our vote and waits until it has enough of them.
func (h *Handler) voteAt(ctx context.Context, to heir, need int, gone bool) (_ Conn, err error) {
	term := h.term + 1
	dialing, cancel := context.WithTimeout(ctx, h.cfg.KeepAlive)
	conn, err := h.cfg.Dial(dialing, to.Addr)
	cancel()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	answering, cancel := context.WithTimeout(ctx, h.cfg.deadAfter())
	defer cancel()
	n, err := conn.Add(answering, h.keys.move(term, "votes"), 1)
	if err != nil {
		return nil, err
	}
	key := h.keys.move(term, "vote/"+strconv.FormatInt(n, 10))
	vote := voteRecord{Agent: h.id, Round: h.last.Round, Silent: time.Since(h.session.lastWord())}
	if err := conn.Set(answering, key, h.codec.seal(key, vote)); err != nil {
		return nil, err
	}
	elected := h.keys.move(term, "elected")
	if to.Agent != h.id {
		// An heir that does not come to an end may stand still, or be cut off from the rest: the next one gets our vote,
		// and this one has it no longer, since we do not join there.
		waiting, cancel := context.WithTimeout(ctx, h.cfg.deadAfter()+h.cfg.KeepAlive)
		defer cancel()
		value, err := conn.Get(waiting, elected)
		if err != nil {
			return nil, err
		}
		var who string
		return conn, h.codec.open(elected, value, &who)
	}
	counting, cancel := context.WithTimeout(ctx, h.cfg.deadAfter()+h.cfg.KeepAlive)
	defer cancel()
	return conn, h.succeed(counting, conn, term, need, gone)
}

// succeed makes this agent the host once it has the votes.
func (h *Handler) succeed(ctx context.Context, conn rendezvous.Store, term, need int, gone bool) error {
	heir := &inheritance{moved: true, round: h.last.Round, size: h.last.Size, members: map[string]member{}}
	names := map[string]member{}
	for i, o := range h.last.Heirs {
		names[o.Agent] = member{rank: i, name: o.Node}
	}
	reached := h.session.lastWord()             // when one of the voters may have reached the lost store last
	for n := 1; len(heir.members) < need; n++ { // who has voted twice counts once
		key := h.keys.move(term, "vote/"+strconv.Itoa(n))
		value, err := conn.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("%d of %d votes: %w", len(heir.members), need, err)
		}
		var vote voteRecord
		if err := h.codec.open(key, value, &vote); err != nil {
			return err
		}
		if vote.Round != h.last.Round { // somebody else's last round
			continue
		}
		m, known := names[vote.Agent]
		if !known {
			m = member{name: "agent " + vote.Agent}
		}
		heir.members[vote.Agent] = m
		if at := time.Now().Add(-max(vote.Silent, 0)); at.After(reached) {
			reached = at
		}
	}
	if gone {
		heir.wait = h.cfg.deadAfter() + h.cfg.fenced()
	} else {
		look := h.cfg.lookEvery()
		if h.session.ledBy() != h.last.Host { // others look only as often as they send heartbeats
			look = h.cfg.pause(h.last.Company)
		}
		heir.wait = time.Until(reached.Add(look + 2*h.cfg.deadAfter() + h.cfg.fenced()))
	}
	if _, err := conn.Delete(ctx, h.keys.job(keyElsewhere)); err != nil { // of the last time
		return err
	}
	for _, p := range []rendezvous.Pair{
		{Key: h.keys.job("host"), Value: []byte(h.id)},
		{Key: h.keys.job("term"), Value: []byte(strconv.Itoa(term))},
	} {
		if err := conn.Set(ctx, p.Key, p.Value); err != nil {
			return err
		}
	}
	h.heritage = heir
	elected := h.keys.move(term, "elected")
	key := h.keys.term(term, "coordinator")
	if err := conn.Set(ctx, key, h.codec.seal(key, coordinatorRecord{Agent: h.id, Node: h.cfg.Node})); err != nil {
		return err
	}
	return conn.Set(ctx, elected, h.codec.seal(elected, h.id))
}

// hostGone reports whether the process that served the lost store has certainly ended.
func (h *Handler) hostGone(ctx context.Context) bool {
	if h.cfg.Gone == nil || h.cfg.At == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.lookEvery())
	defer cancel()
	return h.cfg.Gone(ctx, h.cfg.At)
}

package membership

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

// When the host of the store dies, the agents of the last round meet at one of their standbys: every agent goes through
// them in the same order and votes at the first one that it reaches, once its workers have stopped. A standby with the
// votes of more than half of the last round becomes the host. Less than that never goes on, so no two worlds come of
// one: a host that is cut off from more than half stops, too (roster.cutOff).
//
// A vote counts only while its agent is there: a standby that has the votes begins a round only if more than half of
// the last one has joined it.
//
// And it waits until nobody can be left in the last round. A coordinator that is cut off from its majority notices that
// deadAfter after it has seen their last heartbeats, and the store may until then have kept another node alive for as
// long again. Where the host's address refuses connections, its process has ended, and the second half is enough.
//
// Where only answers are lost, one heartbeat more of each voter has arrived than it counts. We rely on it that those
// did not take long.

// voteRecord is a vote, with how long ago the voter may have reached the lost store. Rank is the voter's among the agents
// of the round, Host and Addr are its joinRecord's Node and Addr.
type voteRecord struct {
	Agent  string        `json:"agent"`
	Host   string        `json:"host"`
	Addr   string        `json:"addr"`
	Round  int           `json:"round"`
	Nonce  string        `json:"nonce"` // of the round
	Rank   int           `json:"rank"`
	Silent time.Duration `json:"silent"`
}

// elect moves the store to one of the standbys. The workers of this agent have stopped.
func (h *Handler) elect(ctx context.Context, cause error) error {
	need := h.last.Agents/2 + 1
	_ = h.conn.Close()
	voters := h.last.Agents
	if !h.hostLeft {
		voters--
	}
	if voters < need { // without the host there are not enough, whoever is reached
		if h.foundAgain(ctx) {
			return nil
		}
		return h.noQuorum(need, fmt.Errorf("%w; %s too few to decide who goes on", cause, counted(voters, "is", "are")))
	}
	node := "the node that hosts the store"
	if host := h.last.HostNode; host != (nodeID{}) && h.host == h.last.Host { // else it has moved since
		node = "node " + host.String() + ", which hosts the store,"
	}
	v := h.lossOf(node+" is lost", h.last, h.last.HostRank)
	if !h.hostLeft && v.Kind == rendezvous.Fail {
		// The host may be started again, and would wait for us: it hears from us that the job has ended.
		h.log.Warn().Str("reason", v.Message).Dur("wait_ms", 2*h.cfg.deadAfter()).
			Msg("store lost, and the job ends; its host is told so where it is started again meanwhile")
		if h.foundAgain(ctx) {
			return nil
		}
		return errhint.Code(fmt.Errorf("cannot go on without %s: %w: %s", h.cfg.Place, cause, v.Message), v.Status)
	}
	h.log.Warn().Err(cause).Int("votes_needed", need).Int("group_world_size", h.last.Agents).
		Msg("store lost; looking for another host among the nodes of the last round")
	gone := h.hostGone(ctx)
	began := time.Now()
	// A voter may notice the loss as late as a node may be silent after the first one.
	limit := 4 * h.cfg.deadAfter()
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("%d of %d nodes did not come together within %v", need, h.last.Agents, limit))
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
		h.conn = newRecords(back, h.codec)
		return nil
	case context.Cause(ctx) != nil:
		last = context.Cause(ctx)
	}
	return h.noQuorum(need, fmt.Errorf("%w; no other host: %w", cause, last))
}

// foundAgain looks for the lost store where it was, for as long as a host may take that is started again at once.
func (h *Handler) foundAgain(ctx context.Context) bool {
	seeking, cancel := context.WithTimeout(ctx, 2*h.cfg.deadAfter())
	defer cancel()
	back := h.seekAgain(seeking, h.cfg.At, h.cfg.beatEvery())
	if back != nil {
		h.conn = newRecords(back, h.codec)
	}
	return back != nil
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

// vote goes through the standbys until one of them is the host, who is returned, or ctx ends.
func (h *Handler) vote(ctx context.Context, need int, gone bool) (elected *standby, last error) {
	for ctx.Err() == nil {
		for _, standby := range h.last.Standbys {
			if standby.Agent == h.last.Host {
				continue
			}
			conn, err := h.voteAt(ctx, standby, need, gone)
			if err == nil {
				h.left = append(h.left, h.cfg.At)
				h.conn, h.host, h.cfg.At = conn, standby.Agent, standby.Addr
				h.cfg.Place = "the store of " + standby.Node
				return &standby, nil
			}
			if ctx.Err() != nil {
				break
			}
			h.log.Debug().Err(err).Str("node", standby.Node).Msg("no host there")
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
	err := fmt.Errorf("cannot go on without %s: of %d nodes in the last round %d must find each other: %w", h.cfg.Place,
		h.last.Agents, need, why)
	err = errhint.With(err,
		"start the job again on every node; a job of three nodes or more survives its host, and with etcd any node may go")
	return errhint.Code(err, errhint.TryAgain)
}

// voteAt gives a standby our vote and waits until it has enough of them.
func (h *Handler) voteAt(ctx context.Context, to standby, need int, gone bool) (_ *records, err error) {
	term := h.term.term + 1
	dialing, cancel := context.WithTimeout(ctx, h.cfg.KeepAlive)
	dialed, err := h.cfg.Dial(dialing, to.Addr)
	cancel()
	if err != nil {
		return nil, err
	}
	conn := newRecords(dialed, h.codec)
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	answering, cancel := context.WithTimeout(ctx, h.cfg.deadAfter())
	defer cancel()
	vote := voteRecord{
		Agent: h.id, Host: h.cfg.Node, Addr: h.cfg.Addr, Round: h.last.Round, Nonce: h.last.Nonce, Rank: h.last.AgentRank,
		Silent: time.Since(h.session.lastWord()),
	}
	name := func(n int64) string { return h.voteKey(term, n) }
	_, err = deposit(answering, conn, h.keys.move(term, h.job, "tickets"), name, vote, h.cfg.lookEvery())
	if err != nil {
		return nil, err
	}
	elected := h.keys.move(term, h.job, "elected")
	if to.Agent != h.id {
		// A standby that does not come to an end may stand still, or be cut off from the rest: the next one gets our
		// vote, and this one has it no longer, since we do not join there.
		waiting, cancel := context.WithTimeout(ctx, h.cfg.deadAfter()+h.cfg.KeepAlive)
		defer cancel()
		var who hostRecord
		writer, err := conn.await(waiting, elected, h.cfg.lookEvery(), &who)
		if err == nil {
			err = h.codec.by(elected, writer, to.Agent)
		}
		return conn, err
	}
	counting, cancel := context.WithTimeout(ctx, h.cfg.deadAfter()+h.cfg.KeepAlive)
	defer cancel()
	return conn, h.succeed(counting, conn, term, need, gone)
}

// succeed makes this agent the host once it has the votes.
func (h *Handler) succeed(ctx context.Context, conn *records, term, need int, gone bool) error {
	standby := &handover{moved: true, round: h.last.Round, size: h.last.Size, members: map[string]member{}}
	reached := h.session.lastWord() // when one of the voters may have reached the lost store last
	count := func(vote voteRecord) {
		if vote.Round != h.last.Round || vote.Nonce != h.last.Nonce { // somebody else's last round
			return
		}
		// Who has voted twice counts once. The rank is the one that the voter keeps where ranks are fixed.
		standby.members[vote.Agent] = member{rank: vote.Rank, name: nodeName(vote.Host, vote.Addr), host: vote.Host}
		if at := time.Now().Add(-vote.Silent); at.After(reached) {
			reached = at
		}
	}
	if err := h.votes(ctx, conn, term, func() bool { return len(standby.members) >= need }, count); err != nil {
		return fmt.Errorf("%d of %d votes: %w", len(standby.members), need, err)
	}
	if gone {
		standby.wait = h.cfg.deadAfter() + h.cfg.fenced()
	} else {
		look := h.cfg.lookEvery()
		if h.session.ledBy() != h.last.Host { // others look only as often as they send heartbeats
			look = h.cfg.pause(h.last.Agents)
		}
		standby.wait = time.Until(reached.Add(look + 2*h.cfg.deadAfter() + h.cfg.fenced()))
	}
	if err := conn.remove(ctx, h.keys.elsewhere(h.job)); err != nil { // of the last time
		return err
	}
	h.handover = standby
	for _, r := range []record{
		{h.keys.job("host"), hostRecord{h.id}},
		{h.keys.job("term"), termRecord{term}},
		{h.keys.coordinator(term), coordinatorRecord{Agent: h.id, Node: h.cfg.Node, Nonce: newNonce()}},
		{h.keys.move(term, h.job, "elected"), hostRecord{h.id}},
	} {
		if err := conn.set(ctx, r.key, r.value); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) voteKey(term int, n int64) string {
	return h.keys.move(term, h.job, "vote/"+strconv.FormatInt(n, 10))
}

// votes reads votes until there are enough. Their counter is a hint, as that of tickets: a vote that is missing while
// others stand behind it is passed over, and its agent votes again.
func (h *Handler) votes(ctx context.Context, conn *records, term int, enough func() bool, count func(voteRecord)) error {
	key := func(n int64) string { return h.voteKey(term, n) }
	take := func(n int64, raw []byte) {
		var vote voteRecord
		if writer, err := h.codec.open(key(n), raw, &vote); err == nil && h.codec.by(key(n), writer, vote.Agent) == nil {
			count(vote)
		}
	}
	for n := int64(1); !enough(); {
		waiting, cancel := context.WithTimeout(ctx, h.cfg.beatEvery())
		values, err := conn.raws(waiting, []string{key(n)})
		cancel()
		if err == nil {
			take(n, values[0])
			n++
			continue
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		drawn, err := conn.drawn(ctx, h.keys.move(term, h.job, "tickets"), n-1)
		if err != nil {
			return err
		}
		var keys []string
		first := max(n, drawn-batch)
		for i := first; i <= drawn; i++ {
			keys = append(keys, key(i))
		}
		if values, err = conn.current(ctx, keys); err != nil {
			return err
		}
		for i, raw := range values {
			if raw != nil {
				take(first+int64(i), raw)
				n = first + int64(i) + 1
			}
		}
	}
	return nil
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

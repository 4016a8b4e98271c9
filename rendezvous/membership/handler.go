package membership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// Handler is one agent's part. It implements rendezvous.Handler.
type Handler struct {
	cfg   Config
	keys  keys
	codec codec
	id    string
	log   zerolog.Logger

	conn    *records
	host    string // agent that serves conn, empty for none of ours
	term    mandate
	led     map[int]bool // terms in which this agent was the coordinator
	claimed []byte       // the record by which it has claimed the last of them, as it stands in the store
	// job is the nonce of this incarnation of the job: told to this agent by its coordinator, or made by it. Empty
	// before.
	job      string
	mu       sync.Mutex   // guards session against those who look how far a meeting is
	session  *session     // while conn answers
	coord    *coordinator // while this agent is the coordinator
	round    *round       // the one that Next returned last
	stale    [2]*round    // the last two rounds
	mistrust bool         // the store has closed the connection while a ticket was drawn
	garbles  int          // rounds in a row that have ended soon by a disturbance
	asked    time.Time    // when the last ticket was drawn
	last     assignment   // the last place in any round; Round is -1 before the first
	// handover is what this agent knows of the job as its elected host, until it is the coordinator.
	handover *handover
	beats    atomic.Int64 // heartbeats so far
	ballot   *records     // where this agent has used its vote since its last round
	asks     mandate      // the first coordinator that it has asked there
	hostLeft bool         // the host has announced that it leaves: last does not count it any more
	left     []string     // addresses that the store was at before it moved
	standbys []standby    // where the store may move while this agent waits; guarded by mu
	over     bool         // a verdict was final
	leaving  bool         // we have announced that we leave, and host the store
	closed   bool
	hurried  context.Context // ends where nobody is waited for any more
	hurry    context.CancelFunc
	said     bool // that this node hosts the store
	toldRank int  // one more than its rank in the last round; 0 before the first
	excluded quarantine
	examine  func(ctx context.Context, d rendezvous.Door) error // nil: nothing is examined
}

var _ rendezvous.Doorkeeper = (*Handler)(nil)

// New returns a handler. It owns cfg.Store and cfg.Workers from now on.
func New(cfg Config) (*Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot meet other nodes: %w", err), errhint.Usage)
	}
	cfg.IDs, cfg.lost = knownBy(cfg.IDs), new(atomic.Int64)
	id := newNonce()[:16]
	code := newCodec(cfg.RunID, cfg.Token, id)
	h := &Handler{
		cfg: cfg, keys: newKeys(cfg.RunID), codec: code, id: id, log: cfg.Log, conn: newRecords(cfg.Store, code),
		last: assignment{Round: -1, LeadRank: noRank, HostRank: noRank}, led: map[int]bool{},
	}
	h.hurried, h.hurry = context.WithCancel(context.Background())
	return h, nil
}

// Counts implements rendezvous.Counter.
func (h *Handler) Counts() rendezvous.Counts {
	lost := h.cfg.lost.Load()
	return rendezvous.Counts{StoreOperations: rendezvous.CountStores(h.cfg.Served, h.cfg.Workers), LostNodes: &lost}
}

// movable reports whether the store can move when its host dies.
func (h *Handler) movable() bool { return h.cfg.Failover && h.host != "" }

// Next implements rendezvous.Handler.
func (h *Handler) Next(ctx context.Context, m rendezvous.Member) (rendezvous.Round, error) {
	if h.round != nil {
		h.round.leave()
	}
	if err := h.garbled(); err != nil {
		return rendezvous.Round{}, err
	}
	began := time.Now()
	ctx, stop := h.limit(ctx)
	defer stop()
	for {
		r, err := h.meet(ctx, m)
		if errors.Is(err, errAgain) && ctx.Err() != nil { // whoever has called says why, perhaps by the end of another session
			err = context.Cause(ctx)
		}
		switch {
		case err == nil:
			h.log.Info().Int("round", r.Number).Int("group_rank", r.GroupRank).Int("group_world_size", r.GroupWorldSize).
				Int("world_size", r.WorldSize).Str("addr", joinHostPort(r.MasterAddr, r.MasterPort)).Dur("dur_ms", time.Since(began)).
				Msg("node takes part in a round")
			return r, nil
		case errors.Is(err, errAgain):
			h.log.Debug().Err(err).Msg("meeting begins anew")
		case errors.Is(err, errJoinTimeout):
			return r, h.tooLate(began, err) //nolint:contextcheck // ctx has ended
		case isUntrusted(err) && errhint.CodeOf(err) == errhint.Internal: // whoever has written it is to blame, and not we
			return r, errhint.Code(err, errhint.TryAgain)
		default:
			return r, err
		}
	}
}

// errAgain says that a meeting did not lead to a round for a reason that another one may not have.
var errAgain = errors.New("the meeting begins anew")

// errJoinTimeout is the cause of a meeting's end.
var errJoinTimeout = errors.New("the join timeout has passed")

// tooLate is how a meeting ends that took too long.
func (h *Handler) tooLate(began time.Time, err error) error {
	_, state := h.waitlist(context.Background())
	err = fmt.Errorf("cannot join job %q at %s within %v: %w (%s)", h.cfg.RunID, h.cfg.Place,
		time.Since(began).Round(time.Second), err, state)
	hint := "do the other nodes run, with the same run id and endpoint? --join-timeout gives them more time"
	asking, cancel := context.WithTimeout(context.Background(), h.cfg.KeepAlive)
	defer cancel()
	if full := whyFull(asking, h.conn.conn); full != "" {
		hint = "the store is full, and closes who adds to it (" + full +
			"): --store-limit gives it more room, --store-allow keeps strangers out"
	}
	if others := otherIDs(asking, h.conn.conn, h.cfg.RunID); others != "" {
		hint += "; other jobs use this store: " + others
	}
	return errhint.Code(errhint.With(err, hint), errhint.TryAgain)
}

// meet is one attempt to get into a round.
func (h *Handler) meet(ctx context.Context, m rendezvous.Member) (rendezvous.Round, error) {
	var none rendezvous.Round
	if h.hostParts() {
		if err := h.awaitParting(ctx); err != nil {
			return none, err
		}
	}
	if h.session == nil || h.session.ctx.Err() != nil {
		if err := h.connect(ctx); err != nil {
			return none, err
		}
	}
	ctx, cancel := both(ctx, h.session.ctx)
	defer cancel()
	if err := h.findCoordinator(ctx); err != nil {
		return none, h.excuse(ctx, err)
	}
	ctx, stop := both(ctx, h.session.leadership(h.term.term))
	defer stop()
	a, prepared, err := h.wish(ctx, m)
	if err != nil {
		return none, h.excuse(ctx, err)
	}
	return h.enter(ctx, a, prepared)
}

// excuse turns the end of a session or of a coordinator's leadership into another attempt.
func (h *Handler) excuse(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if lost, ok := errors.AsType[*lostError](cause); ok {
		return fmt.Errorf("%w: %w", errAgain, lost)
	}
	if errors.Is(err, rendezvous.ErrStoreClosed) {
		h.session.lose(err)
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	if cause != nil {
		return cause
	}
	return err
}

// connect begins a session with the store, elsewhere if it was lost there.
func (h *Handler) connect(ctx context.Context) error {
	if before := h.session; before != nil {
		before.close()
		h.stopCoordinator()
		if err := h.recover(ctx, before.cause()); err != nil {
			return err
		}
	}
	fresh := newSession(h) //nolint:contextcheck // it lives from one call to the next
	h.mu.Lock()
	h.session = fresh
	h.mu.Unlock()
	if !h.cfg.Hosts || h.host != "" { // or the store has moved already
		return nil
	}
	// We say that we serve the store before anybody can become coordinator, who tells the others.
	key := h.keys.job("host")
	ctx, cancel := both(ctx, h.session.ctx)
	defer cancel()
	if err := h.conn.set(ctx, key, hostRecord{h.id}); err != nil { // nobody else serves it, whatever stands there
		return h.excuse(ctx, err)
	}
	h.host = h.id
	return nil
}

func (h *Handler) stopCoordinator() {
	if h.coord != nil {
		h.coord.stop()
		h.coord = nil
		h.session.leadsNot()
	}
}

// findCoordinator finds out who the coordinator is, and becomes it where there is none.
func (h *Handler) findCoordinator(ctx context.Context) error {
	in, stands, err := h.claimTerm(ctx)
	if err != nil {
		return err
	}
	key := h.keys.job("term")
	term := in.Term
	if h.session.deposed(term) { // its coordinator is gone: begin another term; whoever is first decides nothing yet
		if _, err := h.conn.replace(ctx, key, stands.raw, termRecord{term + 1}, &in); storeFailed(err) {
			return err
		}
		term++
	}
	var rec coordinatorRecord
	key = h.keys.coordinator(term)
	claim, err := h.conn.claim(ctx, key, coordinatorRecord{Agent: h.id, Node: h.cfg.Node, Nonce: newNonce()}, &rec)
	if err == nil {
		err = h.codec.by(key, claim.writer, rec.Agent)
	}
	if isUntrusted(err) {
		return errhint.Code(err, errhint.Usage)
	}
	if err != nil {
		return err
	}
	h.term = mandate{term, rec.Nonce}
	if rec.Agent == h.id && h.coord == nil && h.led[term] {
		// We were the coordinator before the store was lost, and have forgotten whom we have answered.
		h.session.depose(term, errAnew)
		return h.findCoordinator(ctx)
	}
	if rec.Agent == h.id && (h.coord == nil || h.coord.term != h.term) {
		h.stopCoordinator()
		h.claimed = claim.raw
		inherit, err := h.inherit(ctx, term)
		if err != nil {
			return err
		}
		if err := h.lead(inherit); err != nil {
			return err
		}
	}
	if rec.Agent != h.id && h.coord != nil { // we had the leadership before
		h.stopCoordinator()
	}
	h.session.follow(h.term, rec.Agent)
	if h.cfg.Hosts && !h.said { // not before we have the leadership: others would be faster
		h.said = true
		h.log.Debug().Str("addr", h.cfg.At).Msg("this node hosts the store")
	}
	return nil
}

// claimTerm returns the term that counts. What nobody of this job has written there is looked at again: a coordinator
// that lives puts its own in the place of it (coordinator.keepTerm).
func (h *Handler) claimTerm(ctx context.Context) (in termRecord, stands found, err error) {
	limit := h.cfg.deadAfter()
	if h.last.Round < 0 { // more likely this node has another token
		limit = 4 * h.cfg.lookEvery()
	}
	for began := time.Now(); ; {
		in = termRecord{}
		stands, err = h.conn.claim(ctx, h.keys.job("term"), termRecord{}, &in)
		if !isUntrusted(err) || time.Since(began) > limit {
			break
		}
		select {
		case <-time.After(h.cfg.lookEvery()):
		case <-ctx.Done():
			return in, stands, context.Cause(ctx)
		}
	}
	switch {
	case !isUntrusted(err):
	case h.last.Round >= 0: // it was ours before
		err = errhint.Code(errhint.With(fmt.Errorf("cannot go on: %w", err), foreignHint), errhint.TryAgain)
	default:
		err = errhint.Code(errhint.With(err, "another program uses this store under the same run id: choose another one, or another port"),
			errhint.Usage)
	}
	return in, stands, err
}

// lead makes this agent the coordinator of a term.
func (h *Handler) lead(inherit *handover) error {
	s := h.session
	if inherit == nil && h.job == "" && h.term.term == 0 { // nobody led before
		h.job = newNonce()
	}
	coord, err := newCoordinator(s.ctx, h, inherit)
	if err != nil {
		return err
	}
	h.led[h.term.term] = true
	s.mu.Lock()
	s.leads, s.ledger, s.retired = h.term.term, coord.ledger, false
	s.mu.Unlock()
	h.coord = coord
	s.wg.Go(func() { // a coordinator that cannot go on takes the session with it
		<-coord.done
		switch {
		case coord.err == nil || coord.ended.Load() || s.ctx.Err() != nil:
		case errors.Is(coord.err, rendezvous.ErrStoreClosed):
			s.lose(coord.err)
		default:
			s.end(&lostError{coord.err, true})
		}
	})
	return nil
}

// inherit reads what the coordinator before has left behind, nil for nothing.
//
// What it says may be of an earlier job of this name, put there again by somebody: it is this job's where that has the
// nonce which this agent was told. Else it says which number the next round has and for whom to wait, and ends a round
// that may run; how often the job has restarted, how large it was and how it ended it does not say.
func (h *Handler) inherit(ctx context.Context, term int) (*handover, error) {
	if i := h.handover; i != nil {
		h.handover = nil
		return i, nil
	}
	if h.host == "" && !h.cfg.Durable {
		var host hostRecord
		if _, err := h.conn.peek(ctx, h.keys.job("host"), &host); storeFailed(err) {
			return nil, err
		} else if err != nil {
			h.log.Warn().Err(err).Msg("not known which node hosts the store: if it dies, the job ends")
		} else {
			h.host = host.Agent
		}
	}
	if term == 0 {
		return nil, nil //nolint:nilnil // the first coordinator inherits nothing, which is no error
	}
	roll, final, err := h.lastRound(ctx)
	if err != nil || roll == nil {
		return nil, err
	}
	ours := h.job != "" && roll.Job == h.job && roll.Round >= h.last.Round
	i := &handover{round: roll.Round, nonce: roll.Nonce, job: roll.Job, members: map[string]member{}, wait: h.cfg.fenced()}
	if final != nil {
		if ours {
			h.over = true
			return nil, &rendezvous.OverError{Verdict: *final}
		}
		i.ended, i.nonce = true, ""
		return i, nil
	}
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reasonAnew, Rank: -1, Message: errAnew.Error(), Node: h.cfg.Node}
	before, left, err := h.ledBefore(ctx, term)
	if storeFailed(err) || err != nil && ours {
		return nil, err
	}
	if ours {
		i.size = roll.Size
	}
	lost := ours && !left && before.Agent != ""
	if lost {
		v = h.lossOf("node "+before.Node+" is not heard of any more", h.standbyOf(roll), h.last.LeadRank)
		v.Subject = before.Node
	}
	for _, m := range roll.Members {
		i.agents = append(i.agents, m.Agent)
		led := m.Agent == before.Agent
		i.members[m.Agent] = member{rank: m.Rank, name: m.String(), host: m.Host, gone: ours && led, uncounted: lost && led}
	}
	var said verdictRecord
	if _, err = h.conn.claim(ctx, h.keys.round(roll.id(), "verdict"), v, &said); storeFailed(err) {
		return nil, err
	}
	return i, nil
}

// lastRound reads the last round at the store, nil for none, and the verdict by which the job has ended with it, nil
// where it has not.
func (h *Handler) lastRound(ctx context.Context) (*rollRecord, *rendezvous.Verdict, error) {
	var roll rollRecord
	f, err := h.conn.peek(ctx, h.keys.job("members"), &roll)
	if err != nil || f.raw == nil {
		return nil, nil, err
	}
	leader := f.writer
	for _, name := range []string{keyDecided, "verdict"} {
		var v verdictRecord
		key := h.keys.round(roll.id(), name)
		f, err = h.conn.peek(ctx, key, &v)
		if name == keyDecided && !storeFailed(err) && (err != nil || f.raw == nil || h.codec.by(key, f.writer, leader) != nil) {
			continue // the coordinator had not decided, or somebody has taken it away
		}
		if err != nil || f.raw == nil || v.Kind != rendezvous.Succeed && v.Kind != rendezvous.Fail {
			return &roll, nil, err
		}
		return &roll, &v.Verdict, nil
	}
	return &roll, nil, nil
}

// reasonAnew is the reason of a verdict on a round whose coordinator has lost its leadership, and not its node.
const reasonAnew = "CoordinatorAnew"

// lossOf is the verdict on the round of place a, which has lost the node of its coordinator, or of the store: that with
// a rank, noRank for one that is not known.
func (h *Handler) lossOf(message string, a assignment, rank int) rendezvous.Verdict {
	v := rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: reasonNodeLost, Rank: -1, Node: h.cfg.Node, Message: message,
		Lost: rank + 1, Grace: h.cfg.fence(),
	}
	rules := h.cfg.rules(false)
	rules.limit(&v, a.Restarts, a.Replacements+1)
	if known, err := parseLosses(a.LostOf); err == nil { // which was checked
		rules.limitRank(&v, known, a.Size, rank)
	}
	return v
}

// Hurry implements rendezvous.Hurrier.
func (h *Handler) Hurry() { h.hurry() }

// Close implements rendezvous.Handler.
func (h *Handler) Close() error {
	if h.closed {
		return nil
	}
	h.closed = true
	defer h.hurry()
	if h.round != nil {
		h.round.leave()
		h.over = h.over || h.round.final
	}
	if s := h.session; s != nil {
		h.sayGoodbye(s)
		s.close()
	}
	h.stopCoordinator()
	err := h.conn.Close()
	if h.cfg.Served != nil {
		err = errors.Join(err, h.cfg.Served.Close())
	}
	if h.cfg.Workers != nil {
		err = errors.Join(err, h.cfg.Workers.Close())
	}
	return err
}

// sayGoodbye tells the coordinator that we leave, and as the coordinator of a job that has ended lets the others leave
// first.
func (h *Handler) sayGoodbye(s *session) {
	if s.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, h.cfg.CloseTimeout)
	defer cancel()
	ctx, release := both(ctx, h.hurried)
	defer release()
	switch {
	case h.parts(ctx, s):
	case !h.over && !h.leaving:
	case h.coord != nil: // workers of others may still be ending, in the time that they have for it
		var members map[string]bool
		if !h.over { // spares stay
			members = h.coord.part(ctx)
		}
		h.coord.othersGone(ctx, func(agent string) bool { return members == nil || members[agent] })
	case h.over && h.host == h.id: // the coordinator leaves when the others have
		waiting, stop := both(ctx, s.leadership(h.term.term))
		_, _ = h.conn.await(waiting, h.keys.left(s.leader), h.cfg.beatEvery(), &leftRecord{})
		stop()
	}
	s.quiet() // no heartbeat may follow the good-bye
	ctx, cancel = context.WithTimeout(s.ctx, min(h.cfg.CloseTimeout, h.cfg.KeepAlive))
	defer cancel()
	_ = h.conn.set(ctx, h.keys.beat(h.id), beat{N: h.beats.Add(1), Left: true}) // where it does not arrive, our silence says the same
	_ = h.conn.set(ctx, h.keys.left(h.id), leftRecord{h.id})
}

package membership

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"muster/rendezvous"
)

// session is the time in which a store answers. It ends when the store was lost, and with it everything that is done
// through it.
type session struct {
	h     *Handler
	conn  *records
	ctx   context.Context
	end   context.CancelCauseFunc
	hush  context.CancelFunc
	wg    sync.WaitGroup // everything but the heartbeat
	beats sync.WaitGroup

	mu          sync.Mutex
	place       string  // where the store is, for people
	mandate     mandate // that of the coordinator
	leader      string  // agent id of the coordinator
	runs        bool    // the coordinator has said that a round runs
	leads       int     // the term that this agent is the coordinator of, -1 for none
	leaderships map[int]*leadership
	sent        time.Time       // when the last heartbeat was sent
	heard       time.Time       // when the last one was sent that the store has answered
	leases      chan time.Time  // what follows from that, the newest only
	final       bool            // the job is decided, and all have heard it
	round       int64           // the one that this agent is in, or was in last; noRound before
	host        string          // agent id of who served the store in the last round, empty for none of ours
	lastNonce   string          // of that round, which may have begun in an earlier session
	nonce       string          // of the round of this session
	agentRank   int             // in it
	fenced      bool            // most of it is out of reach
	replies     replies         // to the coordinator's heartbeats
	proven      time.Time       // when a word of ours was sent that has certainly been heard by who may begin a round without us
	vacant      bool            // the coordinator has left: nobody can, before another one has the leadership
	parting     bool            // this agent has the leadership, hosts the store, and leaves
	parted      bool            // the coordinator, which hosts the store, leaves, and has begun no round after the last one of this agent
	retired     bool            // another one has the leadership that this agent had
	ledger      *ledger         // of the coordinator in this process, nil where there was none
	current     context.Context // of the round; ends with it, and where it is not the coordinator's any more
	strayed     context.CancelCauseFunc
	astray      time.Duration // how long the coordinator has said so
	nudge       chan struct{} // a heartbeat is to be sent now

	agents  atomic.Int64 // how many agents of ours are in the round
	cut     atomic.Int64 // the round most of which the coordinator in this process does not hear of, noRound for none
	running atomic.Bool  // whether the coordinator in this process has a round that runs
}

// lastWord is when the store may have heard of us last: the answer may have been lost.
func (s *session) lastWord() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *session) says(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = at
}

func (s *session) answered(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.Before(s.heard) { // a wish's heartbeat goes another way than the others, and may take longer
		return
	}
	s.heard = at
	switch {
	case !s.leadsLocked(): // others say that they have heard us; without a token that proves no more than the store's answer
		if s.vacant || s.h.codec.macs == nil {
			s.proven = at
			s.renewLocked(at)
		}
		return
	case s.retired:
		return
	}
	// Who could follow us as coordinator has heard us as long as anybody of them has. Where there is only one other its
	// silence may be its own end, and nobody can answer in the place of a store that we serve. Without a token what
	// others say proves no more than the answer of the store, in which they find our heartbeat.
	if s.h.codec.macs != nil && s.agents.Load() > 2 && s.host != s.h.id && s.current != nil && s.current.Err() == nil {
		if at = s.ledger.heardUntil(); at.IsZero() {
			return
		}
	}
	s.proven = at
	s.renewLocked(at)
}

// patience returns until when the store may take to answer, before it is lost, and before the round of this agent ends:
// its lease counts from when it was heard last, which may be earlier.
func (s *session) patience() (store, round time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store = s.heard.Add(s.h.cfg.deadAfter())
	if s.current == nil || s.current.Err() != nil {
		return store, store
	}
	if at := s.proven.Add(s.h.cfg.deadAfter()); at.After(time.Now()) && at.Before(store) {
		return store, at
	}
	return store, store
}

// unanswered ends the round: the store does not answer, and what is left of the lease is for the workers to end.
func (s *session) unanswered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.strayed(errNoAnswer)
	}
}

// renewLocked renews the lease: what we have sent at a time was heard by who may begin a round without us.
func (s *session) renewLocked(at time.Time) {
	if !s.final && !s.fenced {
		s.grantLocked(at.Add(s.h.cfg.lease()))
	}
}

// grantLocked says until when the workers of this node may run.
func (s *session) grantLocked(until time.Time) {
	select {
	case <-s.leases: // nobody has taken it
	default:
	}
	s.leases <- until
}

// enter takes in that this agent is in a round with so many others of ours. What was granted for the last one counts no
// longer: most of that may have been out of reach. asked is when the agent sent the wish that has led to its place. The
// context ends where the coordinator is in another round, or in none.
func (s *session) enter(ctx context.Context, a assignment, asked time.Time) context.Context {
	s.agents.Store(int64(a.Agents))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round, s.nonce, s.agentRank, s.host, s.fenced = int64(a.Round), a.Nonce, a.AgentRank, a.Host, false
	s.lastNonce = a.Nonce
	s.proven = asked
	if at := s.replies.at(a.Heard); at.After(asked) {
		s.proven = at
	}
	if s.leadsLocked() || s.h.codec.macs == nil {
		s.proven = s.heard
	}
	s.grantLocked(s.proven.Add(s.h.cfg.lease()))
	s.current, s.strayed = context.WithCancelCause(ctx)
	s.astray, s.parted = 0, false
	return s.current
}

// hears takes in a later heartbeat of the coordinator, gap after the one before: it says what it has heard of us, and
// which round it has.
func (s *session) hears(agent string, b beat, gap time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if agent != s.replies.to {
		return
	}
	s.replies.heard = max(s.replies.heard, b.N)
	switch {
	case s.current == nil || s.current.Err() != nil:
	case b.Round == s.nonce && b.Runs:
		s.astray = 0
	default: // the verdict is on its way, or does not come
		if s.astray += gap; s.astray >= s.h.cfg.deadAfter() {
			s.strayed(errStrayed)
		}
	}
	if b.Round != s.nonce {
		return
	}
	if at := s.replies.at(b.answeredBy(s.agentRank)); at.After(s.proven) {
		s.proven = at
		s.renewLocked(at)
	}
}

// errStrayed is the end of a round whose verdict was kept from this agent.
var errStrayed = errors.New("the coordinator has ended this round, and its verdict does not come")

// strays is why the round of this agent has ended for it alone, nil where it has not.
func (s *session) strays() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil
	}
	return context.Cause(s.current)
}

// errUnheard, errSilent and errNoAnswer are the end of a round in which the coordinator may have given up this node: it
// says nothing of us, or nothing at all, or the store does not answer.
var (
	errUnheard  = errors.New("the coordinator is not known to have heard of this node for too long")
	errSilent   = errors.New("the coordinator is not heard of")
	errNoAnswer = errors.New("the store does not answer")
)

// errGarbled is the end of the leadership of a coordinator that may live.
var errGarbled = errors.New("something that is no agent of this job replaces or removes the heartbeats of the coordinator in the store")

// errLeft is the end of the leadership of a coordinator that was told to stop.
var errLeft = errors.New("the coordinator has left")

// errAnew is the end of the leadership of a coordinator that lives.
var errAnew = errors.New("the coordinator has begun anew")

// unheard ends the round where nothing that we have sent for as long as a node may be silent has certainly been heard:
// what is left of our lease is for the workers to end. The coordinator stays coordinator until it is silent for as long
// itself.
func (s *session) unheard(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && time.Since(s.proven) >= s.h.cfg.deadAfter() {
		s.strayed(why)
	}
}

// settled takes in that the job is decided for all: no round follows, so that nobody goes on without this node.
func (s *session) settled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final = true
	s.grantLocked(time.Time{})
}

// outOfReach takes in most of which rounds is cut off from the store. Where one is ours, they may go on without this
// node, even if the job is decided here: they may not have heard.
func (s *session) outOfReach(rounds ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.round != noRound && slices.Contains(rounds, s.round)
	if is && !s.fenced {
		s.grantLocked(time.Now().Add(s.h.cfg.fence()))
	}
	s.fenced = is
}

// leadership is a coordinator's time.
type leadership struct {
	ctx context.Context
	end context.CancelCauseFunc
}

// lostError is the cause of the end of a session, or of a coordinator's leadership.
type lostError struct {
	why   error
	fatal bool // it is not the store that is to blame: another session would end the same way
}

func (e *lostError) Error() string { return e.why.Error() }
func (e *lostError) Unwrap() error { return e.why }

func newSession(h *Handler) *session {
	s := &session{
		h: h, conn: h.conn, place: h.cfg.Place, mandate: mandate{term: -1}, leads: -1, leaderships: map[int]*leadership{},
		sent: time.Now(), heard: time.Now(), leases: make(chan time.Time, 1), nudge: make(chan struct{}, 1),
	}
	s.round, s.host, s.lastNonce = noRound, h.last.Host, h.last.Nonce
	s.cut.Store(noRound)
	s.ctx, s.end = context.WithCancelCause(context.Background())
	beating, hush := context.WithCancel(s.ctx)
	s.hush = hush
	s.beats.Go(func() { s.beat(beating) })
	return s
}

// lose ends the session: the store is lost.
func (s *session) lose(why error) {
	if errors.Is(why, rendezvous.ErrStoreClosed) {
		s.h.log.Debug().Err(why).Msg("store lost")
		why = &goneError{s.where(), why}
	}
	s.end(&lostError{why: why})
}

// where is where the store is, for people.
func (s *session) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

func (s *session) serves(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place = place
}

// goneError says of a store what whoever asked it something need not be named for.
type goneError struct {
	place string
	why   error
}

func (e *goneError) Error() string { return e.place + " has closed the connection" }
func (e *goneError) Unwrap() error { return e.why }

// cause is why the session has ended, nil while it has not.
func (s *session) cause() error { return context.Cause(s.ctx) }

// quiet ends the heartbeat.
func (s *session) quiet() { s.hush(); s.beats.Wait() }

// close ends the session and waits for what it started.
func (s *session) close() {
	s.end(&lostError{why: errors.New("closed here")})
	s.hush()
	s.beats.Wait()
	s.wg.Wait()
}

// follow says who the coordinator of a term is.
func (s *session) follow(m mandate, agent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followLocked(m, agent)
}

func (s *session) followLocked(m mandate, agent string) {
	if s.mandate != m {
		s.runs, s.vacant = false, false
	}
	s.mandate, s.leader = m, agent
	s.replies.follow(agent)
	s.leadershipLocked(m.term)
}

// followNext follows whoever has the leadership after a term, if anybody has. The workers of the round before may take
// their time to end, and until then we ask for no place: it counts us by our answers to its heartbeats.
func (s *session) followNext(ctx context.Context, store *records, term int) error {
	var in termRecord
	f, err := store.glance(ctx, s.h.keys.job("term"), &in)
	if err != nil || f.raw == nil || in.Term <= term {
		return storeError(err)
	}
	var rec coordinatorRecord
	key := s.h.keys.coordinator(in.Term)
	f, err = store.glance(ctx, key, &rec)
	if err != nil || f.raw == nil || s.h.codec.by(key, f.writer, rec.Agent) != nil || rec.Agent == s.h.id {
		return storeError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.Term > s.mandate.term {
		s.followLocked(mandate{in.Term, rec.Nonce}, rec.Agent)
	}
	return nil
}

// resigned takes in that another agent has the leadership that this one had. It does not wait for us: our workers end
// before it begins a round.
func (s *session) resigned(term int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leadershipLocked(term).end(&lostError{why: errAnew})
	if s.retired = true; !s.final {
		s.grantLocked(time.Now().Add(s.h.cfg.fence()))
	}
}

// leadsNot takes in that this agent's time as the coordinator is over.
func (s *session) leadsNot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads, s.ledger = -1, nil
}

// leadsLocked reports whether this agent is the coordinator.
func (s *session) leadsLocked() bool { return s.leads >= 0 && s.leads == s.mandate.term }

// roundRuns reports whether the coordinator says that a round runs, in heartbeats that go on: who waits then is a
// spare.
func (s *session) roundRuns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leadsLocked() {
		return s.running.Load()
	}
	return s.runs
}

func (s *session) leadershipLocked(term int) *leadership {
	o := s.leaderships[term]
	if o == nil {
		o = &leadership{}
		o.ctx, o.end = context.WithCancelCause(s.ctx)
		s.leaderships[term] = o
	}
	return o
}

// ledBy returns the agent id of the coordinator.
func (s *session) ledBy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader
}

// leadership returns a context that ends with the coordinator of a term.
func (s *session) leadership(term int) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leadershipLocked(term).ctx
}

// deposed reports whether the coordinator of a term is known to be gone.
func (s *session) deposed(term int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.leaderships[term]
	return o != nil && o.ctx.Err() != nil
}

// depose ends a coordinator's leadership: it is not heard of any more.
func (s *session) depose(term int, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leadershipLocked(term).end(&lostError{why: why})
}

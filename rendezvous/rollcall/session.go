package rollcall

import (
	"context"
	"errors"
	"fmt"
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
	place string // where that is, for people
	ctx   context.Context
	end   context.CancelCauseFunc
	hush  context.CancelFunc
	wg    sync.WaitGroup // everything but the heartbeat
	beats sync.WaitGroup

	mu      sync.Mutex
	mandate mandate // that of the coordinator
	leader  string  // agent id of the coordinator
	runs    bool    // the coordinator has said that a round runs
	leads   int     // the term that this agent is the coordinator of, -1 for none
	offices map[int]*office
	sent    time.Time      // when the last heartbeat was sent
	heard   time.Time      // when the last one was sent that the store has answered
	leases  chan time.Time // what follows from that, the newest only
	final   bool           // the job is decided, and all have heard it
	round   int64          // the one that this agent is in, or was in last; noRound before
	fenced  bool           // most of it is out of reach

	company atomic.Int64 // how many agents of ours are in the round
	cut     atomic.Int64 // the round most of which the coordinator in this process does not hear of, noRound for none
	running atomic.Bool  // whether the coordinator in this process has a round that runs
}

// contact is when the store was certainly reached last.
func (s *session) contact() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard
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
	s.heard = at
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
// longer: most of that may have been out of reach.
func (s *session) enter(round, company int) {
	s.company.Store(int64(company))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round, s.fenced = int64(round), false
	s.grantLocked(s.heard.Add(s.h.cfg.lease()))
}

// settled takes in that the job is decided for all: no round follows, so that nobody goes on without this node.
func (s *session) settled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final = true
	s.grantLocked(time.Time{})
}

// outOfReach takes in most of which rounds is cut off from the store. Where one is ours, they may go on without this node,
// even if the job is decided here: they may not have heard.
func (s *session) outOfReach(rounds ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.round != noRound && slices.Contains(rounds, s.round)
	if is && !s.fenced {
		s.grantLocked(time.Now().Add(s.h.cfg.fence()))
	}
	s.fenced = is
}

// office is a coordinator's time.
type office struct {
	ctx context.Context
	end context.CancelCauseFunc
}

// lostError is the cause of the end of a session, or of a coordinator's office.
type lostError struct {
	why   error
	fatal bool // it is not the store that is to blame: another session would end the same way
}

func (e *lostError) Error() string { return e.why.Error() }
func (e *lostError) Unwrap() error { return e.why }

func newSession(h *Handler) *session {
	s := &session{h: h, conn: h.conn, place: h.cfg.Place, mandate: mandate{term: -1}, leads: -1, offices: map[int]*office{}, sent: time.Now(), heard: time.Now(), leases: make(chan time.Time, 1)}
	s.round = noRound
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
		why = &goneError{s.place, why}
	}
	s.end(&lostError{why: why})
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
	if s.mandate != m {
		s.runs = false
	}
	s.mandate, s.leader = m, agent
	s.officeLocked(m.term)
}

// roundRuns reports whether the coordinator says that a round runs, in heartbeats that go on: who waits then is a spare.
func (s *session) roundRuns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads == s.mandate.term {
		return s.running.Load()
	}
	return s.runs
}

func (s *session) officeLocked(term int) *office {
	o := s.offices[term]
	if o == nil {
		o = &office{}
		o.ctx, o.end = context.WithCancelCause(s.ctx)
		s.offices[term] = o
	}
	return o
}

// ledBy returns the agent id of the coordinator.
func (s *session) ledBy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader
}

// office returns a context that ends with the coordinator of a term.
func (s *session) office(term int) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.officeLocked(term).ctx
}

// deposed reports whether the coordinator of a term is known to be gone.
func (s *session) deposed(term int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offices[term]
	return o != nil && o.ctx.Err() != nil
}

// depose ends a coordinator's office: it is not heard of any more.
func (s *session) depose(term int, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.officeLocked(term).end(&lostError{why: why})
}

// beat writes our heartbeat and watches the coordinator's, until ctx ends or the store is lost.
func (s *session) beat(ctx context.Context) {
	cfg := &s.h.cfg
	pause := cfg.pause(0)
	store := s.conn.reserved() // on a bad network a new connection takes most of the time that there is
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var leader string
	var seen beat
	var silent time.Duration
	looked := time.Now()
	for {
		// The coordinator counts our silence from when it saw a heartbeat, which is after we sent it: so we give up first.
		sent, until := time.Now(), s.contact().Add(cfg.deadAfter())
		once, cancel := context.WithDeadline(ctx, until)
		s.mu.Lock()
		term, who, leads := s.mandate.term, s.leader, s.leads
		s.mu.Unlock()
		s.says(sent)
		cut := s.cut.Load()
		err := store.set(once, s.h.keys.beat(s.h.id), s.h.heartbeat(leads, cut, s.running.Load()))
		if err == nil {
			s.answered(sent)
		}
		var now beat
		if err == nil && who != "" && who != s.h.id {
			now, err = store.pulseOf(once, s.h.keys, who) // there may be none
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			at := time.Now()
			gap := min(at.Sub(looked), cfg.longestGap())
			looked = at
			switch {
			case who != leader:
				leader, seen, silent = who, now, 0
			case now.N > seen.N: // an older one is no sign of life
				seen, silent = now, 0
			case who != s.h.id && who != "":
				silent += gap
			}
			s.outOfReach(cut, seen.cut())
			s.mu.Lock()
			s.runs = seen.Runs && who == s.leader
			s.mu.Unlock()
			switch {
			case seen.Left:
				s.depose(term, errors.New("the coordinator has left"))
			case silent >= cfg.deadAfter():
				s.depose(term, fmt.Errorf("the coordinator is not heard of for %v", cfg.deadAfter()))
			case who != s.h.id && seen.Term != nil && *seen.Term > term:
				s.depose(term, errors.New("the coordinator has begun anew"))
			}
		case isClosed(err):
			s.lose(err)
			return
		case !time.Now().Before(until):
			s.lose(fmt.Errorf("%s does not answer for %v", s.place, cfg.deadAfter()))
			return
		}
		if now := cfg.pause(int(s.company.Load())); now != pause {
			pause = now
			tick.Reset(pause)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// beat is a heartbeat. N grows from each of an agent to its next: what is written again later is no sign of life. A
// coordinator says of which term it is, whether a round runs, and of which round it does not hear enough.
type beat struct {
	N    int64  `json:"n"`
	Left bool   `json:"left,omitempty"` // the agent has left
	Term *int   `json:"term,omitempty"`
	Runs bool   `json:"runs,omitempty"`
	Cut  *int64 `json:"cut,omitempty"`
}

func (b *beat) check() error {
	if b.N < 0 || b.Term != nil && (*b.Term < 0 || *b.Term > maxTerms) {
		return fmt.Errorf("it is heartbeat %d", b.N)
	}
	return nil
}

func (b *beat) cut() int64 {
	if b.Term == nil || b.Cut == nil {
		return noRound
	}
	return *b.Cut
}

// heartbeat is what an agent writes, never twice the same.
func (h *Handler) heartbeat(leads int, cut int64, runs bool) beat {
	b := beat{N: h.beats.Add(1)}
	if leads >= 0 {
		b.Term, b.Runs = &leads, runs
		if cut != noRound {
			b.Cut = &cut
		}
	}
	return b
}

// pulseOf reads an agent's heartbeat. What that agent has not written is none.
func (r *records) pulseOf(ctx context.Context, k keys, agent string) (beat, error) {
	var b beat
	f, err := r.glance(ctx, k.beat(agent), &b)
	if storeFailed(err) {
		return beat{}, err
	}
	if err != nil || f.raw == nil || r.codec.by(k.beat(agent), f.writer, agent) != nil {
		return beat{}, nil //nolint:nilerr // what cannot be trusted is silence
	}
	return b, nil
}

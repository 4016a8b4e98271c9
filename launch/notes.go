package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/rendezvous"
)

// publishEvery is how often a node tells the others of a round how it stands, when that changes.
const publishEvery = time.Second

// The keys on the board of a round.
const (
	statusKey = "status/"
	askedKey  = "control/asked"
	stopKey   = "control/stop"
	nowKey    = "control/stop-now"
)

// stopNote is what stands under stopKey.
type stopNote struct {
	Text string `json:"text"`
}

// take begins to tell the other nodes of a round how this one stands, and to hear from them that the job is to end,
// until the returned function is called.
func (s *Steering) take(ctx context.Context, r rendezvous.Round) (end func()) {
	b := roundBoard{groupRank: r.GroupRank, nodes: r.GroupWorldSize}
	b.Board = r.Board()
	s.mu.Lock()
	s.board, s.others, s.inRound, s.nextLook, s.nextWant = b, map[int]heardStatus{}, true, 0, 0
	s.mu.Unlock()
	left := func() {
		s.mu.Lock()
		s.board.Board, s.inRound = nil, false
		s.mu.Unlock()
	}
	if b.Board == nil {
		return left
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { s.publish(ctx, b) })
	wg.Go(func() {
		// Until somebody asks for something, each node has one wait at the store, and one connection for it.
		if !awaitNote(ctx, b.Board, askedKey, func([]byte) bool { return true }) {
			return
		}
		for _, listen := range []func(context.Context, roundBoard){
			s.listenStop, s.listenPause, s.listenKill, s.listenLooks, s.listenWants,
		} {
			wg.Go(func() { listen(ctx, b) })
		}
	})
	return func() {
		left()
		cancel()
		wg.Wait()
	}
}

// publish tells the other nodes of each change, but no more often than once in publishEvery.
func (s *Steering) publish(ctx context.Context, b roundBoard) {
	bytes := 0 // of what was said
	for {
		words := s.words() // before: what is told meanwhile is said the next time
		d := s.Status()
		d.Conditions, d.RootCause = nil, nil // the same on all nodes
		s.mu.Lock()
		reach := s.reachLocked()
		s.mu.Unlock()
		if text, err := json.Marshal(heardStatus{d, moment(time.Now()), reach}); err == nil {
			bytes = len(text)
			if err := note(ctx, b.Board, statusKey+strconv.Itoa(b.groupRank), text); err != nil && ctx.Err() == nil {
				s.log.Debug().Err(err).Msg("the other nodes do not hear how this one stands")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(publishEvery):
		}
		if !s.awaitNews(ctx, words, ProgressEvery(b.nodes, bytes)) {
			return
		}
	}
}

// note writes on a board what may be lost: who looks for it does without.
func note(ctx context.Context, b rendezvous.Board, key string, value []byte) error {
	if n, is := b.(rendezvous.Noter); is {
		return n.Note(ctx, key, value)
	}
	return b.Set(ctx, key, value)
}

// ask asks something of the other nodes of a round: it writes under a key that they wait for once anything is asked. That
// something is goes first: what could not be asked would else stand there, and be done with the next thing.
func ask(ctx context.Context, b rendezvous.Board, key string, value []byte) error {
	if err := note(ctx, b, askedKey, []byte("{}")); err != nil {
		return err
	}
	return note(ctx, b, key, value)
}

// listenStop waits for word of another node that the job is to end.
func (s *Steering) listenStop(ctx context.Context, b roundBoard) {
	var said stopNote
	if !awaitNote(ctx, b.Board, stopKey, func(text []byte) bool { return json.Unmarshal(text, &said) == nil }) {
		return
	}
	s.stop(cmp.Or(printable.Output(said.Text), "another node was asked to stop the job"))
	if _, err := b.Get(ctx, nowKey); err == nil {
		s.hurry()
	}
}

// awaitNote waits until something stands on a board that take takes. It returns false where ctx has ended.
func awaitNote(ctx context.Context, b rendezvous.Board, key string, take func([]byte) bool) bool {
	for {
		if text, err := b.Get(ctx, key); err == nil && take(text) {
			return true
		}
		select { // the store may be out of reach for a moment
		case <-ctx.Done():
			return false
		case <-time.After(publishEvery):
		}
	}
}

// stop has the job end, and reports whether that is new.
func (s *Steering) stop(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.askedEnd != nil {
		return false
	}
	s.askedEnd = &SignalError{Signal: syscall.SIGTERM, Asked: text}
	for _, end := range s.ends {
		end(s.askedEnd)
	}
	return true
}

// hurry ends the grace of workers that are being stopped, also of those that will be.
func (s *Steering) hurry() { s.nowOnce.Do(func() { close(s.now) }) }

// answerRestart decides about a request for a restart of workers that run: all nodes meet again, and no restart is
// counted.
func (a *Agent) answerRestart(asked chan<- error, lingers bool) policy.Decision {
	if lingers || a.meeting.decided() {
		asked <- errhint.Code(errors.New("cannot restart the workers: the job is decided, and about to end"), errhint.TryAgain)
		return policy.Decision{Rank: -1}
	}
	asked <- nil
	return policy.Decision{
		Verdict: policy.Reassemble, Reason: job.ReasonRequested, Rank: -1,
		Text: "node " + a.Plan.Hostname + " was asked to restart the workers",
	}
}

// stopEvent is the event that the end of ctx is for the policy.
func (a *Agent) stopEvent(ctx context.Context, kind policy.EventKind) policy.Event {
	e := policy.Event{Kind: kind, At: time.Now(), Status: errhint.FromSignal(int(signalOf(ctx)))}
	if s, ok := errors.AsType[*SignalError](context.Cause(ctx)); ok {
		e.Everywhere, e.Text = s.Asked != "" || a.WholeJob != nil && a.WholeJob(), s.Asked
	}
	return e
}

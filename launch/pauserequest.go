package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/rendezvous"
)

// pauseWish is a pause that somebody has asked for and that has not begun.
type pauseWish struct {
	// pauses is the rendezvous.Orders.Pauses that it leads to, 0 where no round has been met yet: then the first one
	// pauses.
	pauses int
	text   string
}

// pauseKey is where a node says on the board of a round that the job is to pause: not in all its phases can a round be
// ended.
const pauseKey = "control/pause"

// pauseNote is what stands there.
type pauseNote struct {
	Pauses int    `json:"pauses"`
	Text   string `json:"text"`
}

// wantPause takes in that the job is to pause.
func (s *Steering) wantPause(w pauseWish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wish != nil || w.pauses != 0 && w.pauses <= s.orders.Pauses {
		return
	}
	s.wish = &w
	s.pokePause()
}

// pokePause has whoever waits look for a wish.
func (s *Steering) pokePause() {
	select {
	case s.pausing <- struct{}{}:
	default:
	}
}

// awayLocked is why this node cannot say how the job stands, or change that: it takes part in no round with the others. It
// is nil where it does.
func (s *Steering) awayLocked() error {
	if s.inRound || s.plan.Job.Alone() {
		return nil
	}
	return errhint.Code(errhint.With(fmt.Errorf("node %s takes part in no round now (%s)", s.plan.Hostname, s.status.Phase),
		"try again, or ask a node whose workers run, where there is one"), errhint.TryAgain)
}

// InRound reports why this node takes part in no round now, nil where it does.
func (s *Steering) InRound() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awayLocked()
}

// wished is the pause that is wanted in a round that does not pause, nil for none.
func (s *Steering) wished() *pauseWish {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wish
}

// met takes in the pause of the round with a number that the node has met the others in. A wish for what has come is
// none any more.
func (s *Steering) met(number int, p rendezvous.Orders, nodes int, board rendezvous.Board) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds, s.orders, s.mixed = true, p, nodes > 1 && board == nil
	if w := s.wish; w != nil && (p.Paused || w.pauses != 0 && w.pauses <= p.Pauses) {
		s.wish = nil
	} else if w != nil && w.pauses == 0 && number > 0 {
		s.wish = nil // what was asked of this node was about a job that ran without it
		s.log.Warn().Str("reason", w.text).Msg("the job is not paused: it ran without this node when that was asked")
	}
	if s.wish != nil {
		s.pokePause()
	}
}

// listenPause waits for word of another node that the job is to pause.
func (s *Steering) listenPause(ctx context.Context, b roundBoard) {
	var said pauseNote
	take := func(text []byte) bool {
		said = pauseNote{}
		return json.Unmarshal(text, &said) == nil && said.Pauses > 0
	}
	if awaitNote(ctx, b.Board, pauseKey, take) {
		s.wantPause(pauseWish{said.Pauses, cmp.Or(printable.Output(said.Text), "another node was asked to pause the job")})
	}
}

// pause has the job pause, and says what follows.
func (s *Steering) pause(ctx context.Context, by control.Peer) (string, error) {
	text := fmt.Sprintf("%s has paused the job on node %s", by, s.plan.Hostname)
	s.mu.Lock()
	b, phase, p, mixed, wished, nodes := s.board, s.status.Phase, s.orders, s.mixed, s.wish != nil, s.status.Nodes
	w := pauseWish{text: text}
	if s.rounds {
		w.pauses = p.Pauses + 1
	}
	s.mu.Unlock()
	switch {
	case phase == report.PhaseResuming:
		return "", errhint.Code(errors.New("cannot pause the job now: it is being resumed"), errhint.TryAgain)
	case p.Paused || phase == report.PhasePausing || wished:
		return "", errhint.With(errhint.Usagef("the job is paused already, or about to be (%s)", phase), "muster resume goes on")
	case mixed:
		return "", errhint.Usagef("cannot pause the job: %w", errOtherAgents)
	case slices.Contains(endPhases, phase):
		return "", errhint.Code(fmt.Errorf("cannot pause the job: it is decided, and about to end (%s)", phase), errhint.TryAgain)
	}
	s.wantPause(w)
	if b.Board != nil && nodes > 1 {
		if err := s.tellPause(ctx, b, w); err != nil {
			s.log.Debug().Err(err).Msg("the other nodes were not told on the board of the round that the job is to pause")
		}
	}
	switch {
	case phase == report.PhaseRunning:
		return fmt.Sprintf("the job is being paused: its workers have %v to end, and muster resume starts them again",
			s.plan.Job.Stop.Grace), nil
	case w.pauses == 0:
		return "the job will pause when its nodes have met, before workers start", nil
	}
	return fmt.Sprintf("the job will pause before its workers run again (%s now)", phase), nil
}

// endPhases are those of a job that is decided.
var endPhases = []report.Phase{report.PhaseTerminating, report.PhaseSucceeded, report.PhaseFailed, report.PhaseTimeout}

// tellPause tells the other nodes of a round that the job is to pause.
func (s *Steering) tellPause(ctx context.Context, b roundBoard, w pauseWish) error {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	said, err := json.Marshal(pauseNote{w.pauses, w.text})
	if err == nil {
		err = ask(ctx, b.Board, pauseKey, said)
	}
	return err
}

// resumeTime bounds the waiting for a job that is to be resumed, after it was told.
const resumeTime = 3 * time.Second

// resume ends the pause of the job, and says what follows. Words take the place of its command.
func (s *Steering) resume(ctx context.Context, by control.Peer, words []string) (string, error) {
	s.mu.Lock()
	phase, on, wished, away := s.status.Phase, s.orders.Paused, s.wish != nil, s.awayLocked()
	s.mu.Unlock()
	if !on {
		err := errhint.Usagef("cannot resume the job: it is not paused (%s)", phase)
		switch {
		case wished || phase == report.PhasePausing:
			err = errhint.Code(errors.New("cannot resume the job now: it is about to be paused"), errhint.TryAgain)
		case away != nil:
			err = away
		}
		return "", err
	}
	answer := make(chan error, 1)
	text := fmt.Sprintf("%s has resumed the job on node %s", by, s.plan.Hostname)
	if len(words) > 0 {
		text += fmt.Sprintf(" with the command %q", job.ShownArgsBut(words, s.plan.Job.Vars()))
	}
	err := hand(ctx, s, s.resumes, resumption{words, text, answer}, "resume the job", "its nodes meet", "try again")
	if err == nil {
		err = agreed(ctx, answer, "resumed")
	}
	if err != nil {
		return "", err
	}
	if len(words) > 0 {
		return "the job is resumed: all workers start, with the new command", nil
	}
	return "the job is resumed: all workers start again", nil
}

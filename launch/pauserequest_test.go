package launch

import (
	"testing"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// TestPauseWishes: a pause that was asked for comes, also where something else is done first, and one that has come is
// not wanted again.
func TestPauseWishes(t *testing.T) {
	s := &Steering{log: zerolog.Nop(), plan: &plan.Plan{Job: job.Job{Nodes: job.Range{Min: 1, Max: 3}}}}
	wants := func(want bool, when string) {
		t.Helper()
		if got := s.wished() != nil; got != want {
			t.Errorf("%s: a pause is wanted: %v, want %v", when, got, want)
		}
	}
	s.met(0, rendezvous.Orders{}, 1, nil)
	s.wantPause(pauseWish{pauses: 1})
	s.met(1, rendezvous.Orders{Version: 1, Nodes: 2}, 1, nil)
	wants(true, "the job was scaled first")
	s.met(2, rendezvous.Orders{Version: 2, Nodes: 2, Paused: true, Pauses: 1}, 1, nil)
	wants(false, "it is paused")
	s.met(3, rendezvous.Orders{Version: 3, Nodes: 2, Pauses: 1}, 1, nil)
	s.wantPause(pauseWish{pauses: 1})
	wants(false, "what another node says is about the pause that is over")
	s.wantPause(pauseWish{pauses: 2})
	s.met(4, rendezvous.Orders{Version: 3, Nodes: 2, Pauses: 1}, 1, nil)
	wants(true, "another one was asked for")

	first := &Steering{log: zerolog.Nop(), plan: s.plan}
	first.wantPause(pauseWish{})
	first.met(0, rendezvous.Orders{}, 1, nil)
	if first.wished() == nil {
		t.Error("a job that has not begun does not pause first")
	}
	late := &Steering{log: zerolog.Nop(), plan: s.plan}
	late.wantPause(pauseWish{})
	late.met(7, rendezvous.Orders{}, 1, nil)
	if late.wished() != nil {
		t.Error("a job pauses that ran without the node when that was asked")
	}
}

// boardless is the exchange of a round in which a node is alone.
type boardless struct{ rendezvous.Exchange }

func (boardless) Board() rendezvous.Board { return nil }

// TestAway: a node without a round does not say how the job stands.
func TestAway(t *testing.T) {
	s := &Steering{log: zerolog.Nop(), plan: &plan.Plan{Job: job.Job{Nodes: job.Range{Min: 1, Max: 3}}}}
	if err := s.InRound(); errhint.CodeOf(err) != errhint.TryAgain {
		t.Errorf("InRound() = %v", err)
	}
	left := s.take(t.Context(), rendezvous.Round{GroupWorldSize: 1, Exchange: boardless{}})
	if err := s.InRound(); err != nil {
		t.Errorf("in a round: %v", err)
	}
	left()
	if err := s.InRound(); err == nil {
		t.Error("it has left the round")
	}
}

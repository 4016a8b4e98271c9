package rendezvous_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/rendezvous"
)

// server counts what a handler does with it.
type server struct{ resets, closes int }

func (s *server) Port() int    { return 4711 }
func (s *server) Reset()       { s.resets++ }
func (s *server) Close() error { s.closes++; return nil }

func TestSoloRounds(t *testing.T) {
	s := &server{}
	solo := rendezvous.NewSolo("127.0.0.1", s)
	for i := range 3 {
		got, err := solo.Next(t.Context(), rendezvous.Member{Role: "default", LocalWorldSize: 8})
		if err != nil {
			t.Fatal(err)
		}
		if got.Verdict() != nil || got.Board() != nil { // nobody else is there
			t.Errorf("round %d: verdicts %v, board %v", i, got.Verdict(), got.Board())
		}
		got.Exchange = nil
		want := rendezvous.Round{
			Number: i, GroupWorldSize: 1, WorldSize: 8, RoleWorldSize: 8,
			MasterAddr: "127.0.0.1", MasterPort: 4711, AgentStore: true,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round %d (-want +got):\n%s", i, diff)
		}
		if s.resets != i {
			t.Errorf("round %d starts after %d resets, want %d: its store must be empty", i, s.resets, i)
		}
	}
	if err := solo.Close(); err != nil || s.closes != 1 {
		t.Errorf("closed %d times, %v", s.closes, err)
	}
}

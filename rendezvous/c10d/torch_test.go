package c10d_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/rendezvous/c10d"
)

// equalStates compares everything of two states, times by the moment.
var equalStates = cmp.Options{cmpopts.IgnoreUnexported(c10d.State{}), cmpopts.EquateEmpty()}

// randomState returns a state of up to n nodes that is in order, as agents leave it.
func randomState(r *rand.Rand, n int) *c10d.State {
	s := c10d.NewState()
	s.Round, s.Closed = r.IntN(1<<r.IntN(31)), r.IntN(8) == 0
	s.Complete = r.IntN(2) == 0
	when := func() time.Time { return someTime.Add(time.Duration(r.Int64N(1e15)) * time.Microsecond / 1000 * 1000) }
	if r.IntN(2) == 0 {
		s.Deadline = when()
	}
	if r.IntN(2) == 0 {
		s.RanksRound = r.IntN(300)
	}
	for i := range r.IntN(n + 1) {
		node := c10d.Node{Addr: fmt.Sprintf("node%d.example", r.IntN(1000)), PID: r.Int64N(1 << r.IntN(40)), LocalID: int64(i)}
		if r.IntN(50) == 0 {
			node.Addr = "bücher-" + string(rune('a'+r.IntN(26)))
			for range r.IntN(4) {
				node.Addr += node.Addr
			}
		}
		switch r.IntN(4) {
		case 0:
			s.WaitList[node] = struct{}{}
		case 1:
			s.RedundancyList[node] = struct{}{}
		default:
			s.Participants[node] = 0
			if s.Complete {
				s.Participants[node] = len(s.Participants) - 1
			}
		}
		if s.RanksRound >= 0 && r.IntN(2) == 0 {
			s.Ranks[node] = r.IntN(n)
		}
		s.LastHeartbeats[node] = when().Truncate(time.Microsecond)
	}
	s.Deadline = s.Deadline.Truncate(time.Microsecond)
	return s
}

// TestPythonReadsWhatWeWrite has the real classes unpickle random states, on every torch.
func TestPythonReadsWhatWeWrite(t *testing.T) {
	for name, python := range torches {
		t.Run(name, func(t *testing.T) {
			u := askUpstream(t, python(t))
			legacy := name == "torch 1.13.1"
			r := rand.New(rand.NewPCG(1, 2))
			for i := range 60 {
				n := 5
				if i%20 == 0 {
					n = 1500 // long memo numbers, and more than a batch of SETITEMS
				}
				s := randomState(r, n)
				s.Naive, s.FQDN = legacy, legacy
				text, err := c10d.Encode(s)
				if err != nil {
					t.Fatal(err)
				}
				got, want := u.load(text), stateJSON(s, map[string]any{})
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("state %d: Python reads (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// TestWeReadWhatPythonWrites has the real classes pickle random states in every protocol, on every torch. What Python
// makes of them in turn must not have changed on the way through us, attributes that we do not know included.
func TestWeReadWhatPythonWrites(t *testing.T) {
	extra := map[string]any{
		"later": "ä", "numbers": []any{1.0, -7.5, 1e300, float64(1 << 40), float64(-1 << 33), float64(-1)}, "none": nil, "yes": true,
		"map": map[string]any{"deep": []any{[]any{map[string]any{}}}},
	}
	for name, python := range torches {
		t.Run(name, func(t *testing.T) {
			u := askUpstream(t, python(t))
			legacy := name == "torch 1.13.1"
			r := rand.New(rand.NewPCG(3, 4))
			for protocol := 2; protocol <= 5; protocol++ {
				for i := range 16 {
					n := 5
					if i == 0 {
						n = 1500
					}
					want := randomState(r, n)
					want.RanksRound, want.Ranks = -1, nil
					if legacy {
						want.RedundancyList = c10d.Nodes{} // 1.13 has none
					}
					j := stateJSON(want, nil)
					if i%2 == 0 {
						j.Extra = extra
					}
					got, err := c10d.Decode(u.dump(j, protocol))
					if err != nil {
						t.Fatalf("protocol %d, state %d: %v", protocol, i, err)
					}
					want.Naive = legacy && (len(want.LastHeartbeats) > 0 || !want.Deadline.IsZero())
					want.FQDN = legacy && len(want.LastHeartbeats) > 0
					if diff := cmp.Diff(want, got, equalStates); diff != "" {
						t.Fatalf("protocol %d, state %d (-want +got):\n%s", protocol, i, diff)
					}
					if i%2 == 0 && len(got.Unknown()) != len(extra) {
						t.Errorf("protocol %d, state %d: unknown attributes %q kept, want those of %v", protocol, i, got.Unknown(), extra)
					}
					if legacy && len(want.LastHeartbeats) == 0 {
						continue // nothing shows that the state is an old one
					}
					back, err := c10d.Encode(got)
					if err != nil {
						t.Fatal(err)
					}
					if j.Extra == nil {
						j.Extra = map[string]any{}
					}
					if diff := cmp.Diff(j, u.load(back), cmpopts.EquateEmpty()); diff != "" {
						t.Fatalf("protocol %d, state %d after us (-want +got):\n%s", protocol, i, diff)
					}
				}
			}
		})
	}
}

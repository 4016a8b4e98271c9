package netcheck_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/netcheck"
	"muster/rendezvous/memstore"
)

// door has nodes examine each other that are in no round, and returns the record of the first.
func (s *site) door(waiting ...*machine) *netcheck.Record {
	s.t.Helper()
	space := memstore.NewSpace()
	records := make([]*netcheck.Record, len(waiting))
	var wg sync.WaitGroup
	for rank, m := range waiting {
		wg.Go(func() {
			r := netcheck.Round{Rank: rank, Size: len(waiting), Door: true, Open: func(context.Context) (netcheck.Crew, error) { return crew{m}, nil }}
			if len(waiting) > 1 {
				r.Board = space.Client()
			}
			var err error
			if records[rank], err = m.checker.Check(s.t.Context(), r); err != nil {
				s.t.Errorf("%s: %v", m.name, err)
			}
		})
	}
	wg.Wait()
	return records[0]
}

// onceOnly is a crew that may not be asked for its own tests any more.
func (s *site) onceOnly(names ...string) {
	for _, name := range names {
		s.sick[name] = "it is tested by itself once more"
	}
}

// What is found at the door is not looked for again in the round: of one that was alone there its links are tested, of two that
// were tested together nothing.
func TestDoor(t *testing.T) {
	simulate(t, "a bad node", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		m := s.add("new")
		s.sick["new"] = "a GPU has fallen off the bus"
		r := s.door(m)
		if f := r.Nodes[0].Fault; f == nil || f.Status != errhint.Faulty || r.Fit() {
			t.Errorf("%+v", r.Nodes[0])
		}
	})
	simulate(t, "one node", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		before := len(s.exchanges)
		m := s.add("new")
		if r := s.door(m); !r.Fit() || r.Nodes[0].Local.Compute == 0 || len(s.exchanges) != before {
			t.Errorf("%+v", r)
		}
		s.onceOnly("new")
		if r := s.check(); !r.Fit() || len(r.Links) == 0 || r.Nodes[2].Status != netcheck.Pass || r.Nodes[2].Local.Compute == 0 {
			t.Errorf("%+v", r)
		}
	})
	simulate(t, "a bad link to the others", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		m := s.add("new")
		s.bad["new"] = true // by itself it looks good
		if r := s.door(m); !r.Fit() {
			t.Errorf("%+v", r)
		}
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"new": errhint.Faulty})
	})
	simulate(t, "two nodes", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		a, b := s.add("a"), s.add("b")
		if r := s.door(a, b); !r.Fit() || len(r.Links) != 1 {
			t.Errorf("%+v", r)
		}
		s.onceOnly("a", "b")
		if r := s.check(); !r.Fit() || r.Rounds != 0 {
			t.Errorf("the world waits for tests that were done: %+v", r)
		}
	})
	simulate(t, "two nodes, one bad", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		a, b := s.add("a"), s.add("b")
		s.bad["b"] = true
		if r := s.door(a, b); len(r.Undecided) == 0 {
			t.Errorf("who of two is blamed? %+v", r)
		}
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"b": errhint.Faulty})
	})
	simulate(t, "a suspect", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		m := s.add("new")
		s.door(m)
		s.sick["new"] = "ecc"
		if r := s.check("new"); r.Fit() {
			t.Errorf("workers failed on it, and it is not tested: %+v", r)
		}
	})
}

// The record says by which accelerators a node is known again.
func TestRecordHasIDs(t *testing.T) {
	ids := []string{"GPU-1", "GPU-2"}
	c := netcheck.New(netcheck.Config{
		Node: "n", Devices: 1, IDs: ids, Rules: netcheck.Rules{Network: true}, Inspect: func(context.Context) string { return "ecc" },
	})
	r, err := c.Check(t.Context(), netcheck.Round{Size: 1, Open: func(context.Context) (netcheck.Crew, error) { return nil, errors.New("not asked for") }})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ids, r.Nodes[0].IDs); diff != "" || r.Nodes[0].Fault == nil {
		t.Errorf("%+v (-want +got):\n%s", r.Nodes[0], diff)
	}
}

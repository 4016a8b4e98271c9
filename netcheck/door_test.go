package netcheck_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/netcheck"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// door has nodes examine each other that are in no round, and returns the record of the first.
func (s *site) door(waiting ...*machine) *netcheck.Record {
	s.t.Helper()
	return s.doorBeside(nil, waiting...)
}

// doorBeside is door, beside nodes that train and have left a standard.
func (s *site) doorBeside(standard []byte, waiting ...*machine) *netcheck.Record {
	s.t.Helper()
	space := memstore.NewSpace()
	records := make([]*netcheck.Record, len(waiting))
	var wg sync.WaitGroup
	for rank, m := range waiting {
		wg.Go(func() {
			r := netcheck.Round{
				Rank: rank, Size: len(waiting), Door: true, Standard: standard,
				Open: func(context.Context) (netcheck.Program, error) { return program{m}, nil },
			}
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

// onceOnly is a program that may not be asked for its own tests any more.
func (s *site) onceOnly(names ...string) {
	for _, name := range names {
		s.sick[name] = "it is tested by itself once more"
	}
}

// What is found of a node by itself at the door is not looked for again in the round. Its links to those that train are
// tested there.
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
		r := s.check()
		withOld := map[int]bool{}
		for _, l := range r.Links {
			if l.A < 2 && l.B >= 2 {
				withOld[l.B] = true
			}
		}
		if !r.Fit() || len(withOld) != 2 {
			t.Errorf("their links to those that train are not known: %+v", r)
		}
	})
	simulate(t, "two nodes, cut off from the others", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		a, b := s.add("a"), s.add("b")
		for _, m := range s.nodes[:3] {
			s.links["a-"+m.name], s.links["b-"+m.name] = true, true
		}
		if r := s.door(a, b); !r.Fit() {
			t.Errorf("%+v", r)
		}
		if r := s.check(); r.Fit() {
			t.Errorf("nobody finds that they reach nobody: %+v", r)
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

// checkAndStandard is a check of a round, and what it leaves for newcomers.
func (s *site) checkAndStandard() []byte {
	s.t.Helper()
	space := memstore.NewSpace()
	boards := make([]rendezvous.Board, len(s.nodes))
	for i := range boards {
		boards[i] = space.Client()
	}
	s.checkOn(s.t.Context(), boards, func(m *machine, _ *netcheck.Record, err error) {
		if err != nil {
			s.t.Errorf("%s: %v", m.name, err)
		}
	})
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	text, err := space.Client().Get(ctx, rendezvous.StandardKey)
	if err != nil {
		s.t.Errorf("no standard: %v", err)
	}
	return text
}

// What a node lacks or how slow it is shows only beside others: those that train have said what they can do, so that no
// such node stops them. Beside nodes that could not be tested either it is good enough.
func TestDoorStandard(t *testing.T) {
	exclude := netcheck.Rules{ExcludeStraggler: true}
	want := func(t *testing.T, r *netcheck.Record, status int, reason string) {
		t.Helper()
		f := r.Nodes[0].Fault
		if status == 0 && f == nil {
			return
		}
		if f == nil || f.Status != status || !strings.Contains(f.Reason, reason) {
			t.Errorf("%+v of %+v, want status %d", f, r.Nodes[0], status)
		}
	}
	simulate(t, "no torch", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		text := s.checkAndStandard()
		s.noPy["new"] = true
		m := s.add("new")
		want(t, s.door(m), 0, "")
		want(t, s.doorBeside(text, m), errhint.Faulty, "torch")
	})
	simulate(t, "no accelerator", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.kind["new"] = "cpu"
		for _, m := range s.nodes {
			s.kind[m.name] = "H100"
		}
		text := s.checkAndStandard()
		want(t, s.doorBeside(text, s.add("new")), errhint.Faulty, "torch finds no accelerator here, and on other nodes it finds H100")
	})
	for name, c := range map[string]struct {
		rules  netcheck.Rules
		slow   float64
		busy   bool
		status int
	}{
		"slow":            {exclude, 5, false, errhint.Straggler},
		"a little slower": {exclude, 1.2, false, 0},
		"slow, and kept":  {netcheck.Rules{}, 5, false, 0},
		"busy just then":  {exclude, 1, true, 0},
	} {
		simulate(t, name, 3, c.rules, func(t *testing.T, s *site) {
			text := s.checkAndStandard()
			s.slow["new"], s.busy["new"] = c.slow, c.busy
			want(t, s.doorBeside(text, s.add("new")), c.status, "a straggler")
		})
	}
	simulate(t, "nobody has torch", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		for _, m := range s.nodes {
			s.noPy[m.name] = true
		}
		s.noPy["new"] = true
		s.check()
		want(t, s.doorBeside(nil, s.add("new")), 0, "")
	})
	simulate(t, "not understood", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.noPy["new"] = true
		want(t, s.doorBeside([]byte("{"), s.add("new")), 0, "")
	})
}

// The record says by which accelerators a node is known again.
func TestRecordHasIDs(t *testing.T) {
	ids := []string{"GPU-1", "GPU-2"}
	c := netcheck.New(netcheck.Config{
		Node: "n", Devices: 1, IDs: ids, Rules: netcheck.Rules{Network: true}, Inspect: func(context.Context) string { return "ecc" },
	})
	r, err := c.Check(t.Context(),
		netcheck.Round{Size: 1, Open: func(context.Context) (netcheck.Program, error) { return nil, errors.New("not asked for") }})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ids, r.Nodes[0].IDs); diff != "" || r.Nodes[0].Fault == nil {
		t.Errorf("%+v (-want +got):\n%s", r.Nodes[0], diff)
	}
}

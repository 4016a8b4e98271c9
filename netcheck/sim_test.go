package netcheck_test

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/netcheck"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// site is nodes, some of which are bad. What a test would measure there is simulated, what follows from it is not.
type site struct {
	t     *testing.T
	rules netcheck.Rules
	nodes []*machine // by group rank
	bad   map[string]bool
	links map[string]bool // bad ones, "a-b"
	slow  map[string]float64
	busy  map[string]bool // slow the first time, by something else
	hang  string          // node whose check program never answers
	sick  map[string]string
	noPy  map[string]bool
	kind  map[string]string // of its devices
	stuck map[string]bool   // its check program does not end when it is told to
	open  map[string]bool   // its check program runs

	mu        sync.Mutex
	exchanges []string
}

type machine struct {
	*site
	name    string
	checker *netcheck.Checker
	silent  bool // it never comes to a check
	steps   []netcheck.Step
}

func newSite(t *testing.T, n int, rules netcheck.Rules) *site {
	rules.Network = true
	s := &site{
		t: t, rules: rules, bad: map[string]bool{}, links: map[string]bool{}, slow: map[string]float64{}, busy: map[string]bool{},
		sick: map[string]string{}, noPy: map[string]bool{}, kind: map[string]string{}, stuck: map[string]bool{}, open: map[string]bool{},
	}
	for i := range n {
		s.add(fmt.Sprintf("n%d", i))
	}
	return s
}

func (s *site) add(name string) *machine {
	m := &machine{site: s, name: name}
	m.checker = netcheck.New(netcheck.Config{
		Node: name, Addr: name, Devices: 2, Rules: s.rules, Log: zerolog.Nop(),
		Progress: func(step netcheck.Step) { m.steps = append(m.steps, step) },
		Inspect: func(context.Context) string {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.open[name] {
				return "a process computes on the GPU"
			}
			return s.sick[name]
		},
	})
	s.nodes = append(s.nodes, m)
	return m
}

// program simulates what the check program measures.
type program struct{ *machine }

func (c program) Local(ctx context.Context) (netcheck.Local, error) {
	if c.noPy[c.name] {
		return netcheck.Local{}, fmt.Errorf("python has no torch: %w", netcheck.ErrUnable)
	}
	if c.hang == c.name {
		<-ctx.Done()
		return netcheck.Local{}, errors.New("the check program did not answer")
	}
	l := netcheck.Local{Compute: c.pace(c.name) * 10, Kind: stdcmp.Or(c.kind[c.name], "cuda")}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[c.name] {
		c.busy[c.name], l.Compute = false, 10*l.Compute
	}
	return l, nil
}

func (c program) Ready(context.Context) error { return nil }

func (c program) pace(name string) time.Duration {
	if f := c.slow[name]; f > 0 {
		return time.Duration(f * float64(time.Millisecond))
	}
	return time.Millisecond
}

func (c program) Serve(context.Context) (int, error) { return 1, nil }

func (c program) Exchange(_ context.Context, g netcheck.Group) (netcheck.Timing, error) {
	first, _, _ := strings.Cut(g.Store, ":")
	c.mu.Lock()
	c.exchanges = append(c.exchanges, c.name+" at "+first)
	c.mu.Unlock()
	if g.World != 4 || g.FirstRank != 0 && g.FirstRank != 2 || (g.FirstRank == 0) != (first == c.name) {
		c.t.Errorf("%s takes part in %+v", c.name, g)
	}
	// The second one knows both; the first finds out by itself only that it is bad.
	if c.bad[c.name] || c.bad[first] || c.links[first+"-"+c.name] || c.links[c.name+"-"+first] {
		return netcheck.Timing{}, errors.New("connection reset by peer")
	}
	return netcheck.Timing{Took: max(c.pace(c.name), c.pace(first)), Bytes: 1 << 20}, nil
}

func (c program) Perf(_ context.Context, g netcheck.Group) ([]netcheck.Timing, error) {
	return []netcheck.Timing{{Bytes: int64(g.World)}}, nil
}

func (c program) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[c.name] = false
	if c.stuck[c.name] {
		return errors.New("it does not die")
	}
	return nil
}

// check does one check of the nodes that are left, and returns the record, the same on all.
func (s *site) check(suspects ...string) *netcheck.Record {
	space := memstore.NewSpace()
	records := make([]*netcheck.Record, len(s.nodes))
	var wg sync.WaitGroup
	for rank, m := range s.nodes {
		if m.silent {
			continue
		}
		wg.Go(func() {
			r := netcheck.Round{
				Board: space.Client(), Rank: rank, Size: len(s.nodes), Suspect: slices.Contains(suspects, m.name),
				Open: func(context.Context) (netcheck.Program, error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.open[m.name] = true
					return program{m}, nil
				},
			}
			var err error
			if records[rank], err = m.checker.Check(s.t.Context(), r); err != nil {
				s.t.Errorf("%s: %v", m.name, err)
			}
		})
	}
	wg.Wait()
	first := records[0]
	for rank, r := range records {
		if !s.nodes[rank].silent && !cmp.Equal(first, r) {
			s.t.Errorf("node %d has another record:\n%s", rank, cmp.Diff(first, r))
		}
	}
	return first
}

// settle checks until everybody is fit or nobody can be blamed, and returns who left, with which status.
func (s *site) settle() (left map[string]int, last *netcheck.Record) {
	left = map[string]int{}
	for range 10 {
		r := s.check()
		if r == nil || r.Fit() || len(r.Undecided) > 0 || len(s.nodes) == 0 {
			return left, r
		}
		last = r
		stay := s.nodes[:0:0]
		for i, m := range s.nodes {
			if f := r.Nodes[i].Fault; f != nil {
				left[m.name] = f.Status
			} else {
				stay = append(stay, m)
			}
		}
		s.nodes = stay
		if len(stay) == 0 {
			return left, r
		}
	}
	s.t.Errorf("no end of it: %+v", last)
	return left, last
}

func simulate(t *testing.T, name string, n int, rules netcheck.Rules, f func(t *testing.T, s *site)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newSite(t, n, rules)) })
	})
}

func wantLeft(t *testing.T, left, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("who left (-want +got):\n%s", diff)
	}
}

// TestFaults has each kind of fault in a job: who leaves, with which status, and that the rest is fit.
func TestFaults(t *testing.T) {
	simulate(t, "none", 5, netcheck.Rules{CommPerf: true}, func(t *testing.T, s *site) {
		left, r := s.settle()
		wantLeft(t, left, map[string]int{})
		if r.Rounds != 2 || len(r.Perf) != 1 || r.Perf[0].Bytes != 10 || r.Nodes[4].Status != netcheck.Pass {
			t.Errorf("%+v", r)
		}
	})
	simulate(t, "a bad node", 4, netcheck.Rules{CommPerf: true}, func(t *testing.T, s *site) {
		s.bad["n2"] = true
		left, r := s.settle()
		wantLeft(t, left, map[string]int{"n2": errhint.Faulty})
		if len(r.Perf) != 1 {
			t.Errorf("the nodes that are left were not measured: %+v", r)
		}
		if again := s.check(); len(again.Perf) != 0 {
			t.Errorf("the same nodes were measured twice: %+v", again.Perf)
		}
		if r.Rounds != 0 || len(r.Nodes) != 3 {
			t.Errorf("the cleared nodes are tested again: %+v", r)
		}
	})
	simulate(t, "three bad nodes, rank 0 among them", 6, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.bad["n0"], s.bad["n3"], s.bad["n4"] = true, true, true
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n0": errhint.Faulty, "n3": errhint.Faulty, "n4": errhint.Faulty})
	})
	simulate(t, "a bad link", 4, netcheck.Rules{Full: true}, func(t *testing.T, s *site) {
		s.links["n1-n3"] = true
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n3": errhint.Undecided})
	})
	simulate(t, "a straggler stays", 4, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.slow["n1"] = 5
		left, r := s.settle()
		wantLeft(t, left, map[string]int{})
		if len(r.Stragglers) == 0 || r.Stragglers[0].Node != 1 {
			t.Errorf("stragglers: %+v", r.Stragglers)
		}
	})
	simulate(t, "a node that is busy once", 4, netcheck.Rules{ExcludeStraggler: true}, func(t *testing.T, s *site) {
		s.busy["n2"] = true
		left, r := s.settle()
		wantLeft(t, left, map[string]int{})
		if len(r.Stragglers) > 0 || r.Nodes[2].Local.Compute != 10*time.Millisecond {
			t.Errorf("stragglers: %+v, %+v", r.Stragglers, r.Nodes[2])
		}
	})
	simulate(t, "a straggler leaves", 4, netcheck.Rules{ExcludeStraggler: true}, func(t *testing.T, s *site) {
		s.slow["n1"] = 5
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n1": errhint.Straggler})
	})
	simulate(t, "a slow newcomer", 4, netcheck.Rules{ExcludeStraggler: true}, func(t *testing.T, s *site) {
		s.check()
		s.add("new")
		s.slow["new"] = 10
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"new": errhint.Straggler})
	})
	simulate(t, "torch without an accelerator", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.kind["n2"] = "cpu"
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n2": errhint.Faulty})
	})
	simulate(t, "a program that does not die", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.stuck["n1"] = true
		left, r := s.settle()
		wantLeft(t, left, map[string]int{})
		if !r.Fit() {
			t.Errorf("%+v", r)
		}
	})
	simulate(t, "a straggler beside a doubt", 4, netcheck.Rules{ExcludeStraggler: true, Full: true}, func(t *testing.T, s *site) {
		s.slow["n3"] = 9
		s.links["n0-n1"], s.links["n0-n2"] = true, true
		left, _ := s.settle()
		if left["n3"] != errhint.Straggler {
			t.Errorf("who left: %v", left)
		}
	})
	simulate(t, "two ends of bad links", 5, netcheck.Rules{Full: true}, func(t *testing.T, s *site) {
		s.links["n1-n4"], s.links["n2-n3"] = true, true
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n4": errhint.Undecided, "n3": errhint.Undecided})
	})
	simulate(t, "a sick node", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.sick["n0"] = "gpu 3 has fallen off the bus"
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n0": errhint.Faulty})
	})
	simulate(t, "a hanging check program", 3, netcheck.Rules{Budget: 20 * time.Second}, func(t *testing.T, s *site) {
		s.hang = "n1"
		begin := time.Now()
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n1": errhint.Faulty})
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
	simulate(t, "a node alone", 1, netcheck.Rules{}, func(t *testing.T, s *site) {
		left, r := s.settle()
		wantLeft(t, left, map[string]int{})
		if r.Nodes[0].Status != netcheck.Pass {
			t.Errorf("%+v", r.Nodes[0])
		}
	})
	simulate(t, "a sick node alone", 1, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.sick["n0"] = "no /dev/shm"
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n0": errhint.Faulty})
	})
}

// TestUndecided has what nobody can be blamed for: nobody leaves, and it is said what would explain it.
// TestProgress: a node says what it does, and how long that may take.
func TestProgress(t *testing.T) {
	simulate(t, "clean", 3, netcheck.Rules{CommPerf: true, Budget: 40 * time.Second}, func(t *testing.T, s *site) {
		s.settle()
		waits := netcheck.Step{Doing: netcheck.Waits}
		for rank, m := range s.nodes {
			pairs := 0
			for i, step := range m.steps {
				if (step == waits) != (i%2 == 0) {
					t.Errorf("node %d, step %d: %+v", rank, i, step)
				}
				if step.Doing == netcheck.TestsPair {
					pairs++
					if step.Peer == rank || step.Peer > 2 || step.Pairs < 1 || step.Limit != 55*time.Second {
						t.Errorf("node %d: %+v", rank, step)
					}
				}
			}
			first, last := m.steps[1], m.steps[len(m.steps)-2]
			if first != (netcheck.Step{Doing: netcheck.TestsItself, Limit: 80 * time.Second}) || pairs == 0 ||
				last != (netcheck.Step{Doing: netcheck.MeasuresAll, Limit: 40 * time.Second}) {
				t.Errorf("node %d: %+v", rank, m.steps)
			}
		}
	})
}

func TestUndecided(t *testing.T) {
	simulate(t, "two nodes", 2, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.links["n0-n1"] = true
		r := s.check()
		if len(r.Undecided) == 0 || r.Fit() || r.Nodes[0].Fault != nil || r.Nodes[1].Fault != nil {
			t.Errorf("%+v", r)
		}
		text := strings.Join(r.Undecided, "\n")
		for _, want := range []string{"node n0 is bad", "node n1 is bad", "the link between n0 and n1 is bad", "connection reset by peer"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in:\n%s", want, text)
			}
		}
	})
	simulate(t, "nothing passes", 5, netcheck.Rules{}, func(t *testing.T, s *site) {
		for _, m := range s.nodes {
			s.bad[m.name] = true
		}
		if r := s.check(); len(r.Undecided) == 0 || !strings.Contains(r.Undecided[0], "firewall") {
			t.Errorf("%+v", r)
		}
	})
}

// TestNoTorch: what cannot be tested anywhere is skipped and not passed; a node that alone has no torch is at fault.
func TestNoTorch(t *testing.T) {
	simulate(t, "nowhere", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		for _, m := range s.nodes {
			s.noPy[m.name] = true
		}
		r := s.check()
		if !r.Fit() || r.Nodes[1].Status != netcheck.Skip || !strings.Contains(r.Nodes[1].Unable, "no torch") {
			t.Errorf("%+v", r)
		}
	})
	simulate(t, "nowhere, and one node is sick", 4, netcheck.Rules{}, func(t *testing.T, s *site) {
		for _, m := range s.nodes {
			s.noPy[m.name] = true
		}
		s.sick["n1"] = "uncorrected errors"
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n1": errhint.Faulty})
	})
	simulate(t, "on one node", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.noPy["n1"] = true
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"n1": errhint.Faulty})
	})
	simulate(t, "on a newcomer, where others have it", 3, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		s.add("new")
		s.noPy["new"] = true
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"new": errhint.Faulty})
	})
	simulate(t, "alone", 1, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.noPy["n0"] = true
		if r := s.check(); !r.Fit() || r.Nodes[0].Status != netcheck.Skip {
			t.Errorf("%+v", r)
		}
	})
}

// TestLaterChecks tests only those again of which something is to be found out.
func TestLaterChecks(t *testing.T) {
	simulate(t, "nothing has changed", 4, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		s.exchanges = nil
		if r := s.check(); !r.Fit() || len(s.exchanges) > 0 {
			t.Errorf("tested again: %v", s.exchanges)
		}
	})
	simulate(t, "a suspect", 5, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		s.exchanges = nil
		r := s.check("n3")
		if !r.Fit() || len(s.exchanges) != 2 || !strings.Contains(fmt.Sprint(s.exchanges), "n3") {
			t.Errorf("tests: %v", s.exchanges)
		}
	})
	simulate(t, "a newcomer with rank 0", 4, netcheck.Rules{}, func(t *testing.T, s *site) {
		s.check()
		s.exchanges = nil
		s.add("new")
		s.bad["new"] = true
		slices.Reverse(s.nodes)
		left, _ := s.settle()
		wantLeft(t, left, map[string]int{"new": errhint.Faulty})
		for _, x := range s.exchanges {
			if !strings.Contains(x, "new") && !strings.HasPrefix(x, "n") {
				t.Errorf("tests: %v", s.exchanges)
			}
		}
	})
	simulate(t, "everything, every time", 4, netcheck.Rules{Full: true}, func(t *testing.T, s *site) {
		s.check()
		s.exchanges = nil
		if s.check(); len(s.exchanges) != 12 {
			t.Errorf("%d parts in tests, want 12", len(s.exchanges))
		}
	})
}

// TestSilentNode is in the round, and never comes to the check.
func TestSilentNode(t *testing.T) {
	simulate(t, "", 4, netcheck.Rules{Budget: 10 * time.Second}, func(t *testing.T, s *site) {
		s.nodes[2].silent = true
		r := s.check()
		if f := r.Nodes[2].Fault; f == nil || f.Status != errhint.Faulty || !strings.Contains(f.Reason, "did not come") {
			t.Errorf("%+v", r.Nodes[2])
		}
		if r.Nodes[0].Fault != nil || r.Nodes[3].Status != netcheck.Pass {
			t.Errorf("%+v", r)
		}
	})
}

// TestRoundEnds ends a check with its round: nobody is left waiting.
func TestRoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, netcheck.Rules{})
		over := errors.New("the round is over")
		for rank, m := range s.nodes {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(over) })
			_, err := m.checker.Check(ctx, netcheck.Round{Board: memstore.NewSpace().Client(), Rank: rank, Size: 2})
			if !errors.Is(err, over) {
				t.Errorf("%v", err)
			}
		}
	})
}

// checkOn does one check in which each node has a board of its own to the same place, and calls ended when it ends on a
// node.
func (s *site) checkOn(ctx context.Context, boards []rendezvous.Board, ended func(m *machine, record *netcheck.Record, err error)) {
	var wg sync.WaitGroup
	for rank, m := range s.nodes {
		wg.Go(func() {
			record, err := m.checker.Check(ctx, netcheck.Round{
				Board: boards[rank], Rank: rank, Size: len(s.nodes),
				Open: func(context.Context) (netcheck.Program, error) { return program{m}, nil },
			})
			ended(m, record, err)
		})
	}
	wg.Wait()
}

// brokenBoard refuses what the leader publishes.
type brokenBoard struct{ *memstore.Client }

func (b brokenBoard) Set(ctx context.Context, key string, value []byte) error {
	if strings.HasPrefix(key, "plan/") && strings.Contains(string(value), "verdict") {
		return errors.New("the value is too long")
	}
	return b.Client.Set(ctx, key, value)
}

// TestLeaderFails: a leader that cannot go on says so, and nobody waits for it.
func TestLeaderFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, netcheck.Rules{})
		space := memstore.NewSpace()
		boards := []rendezvous.Board{brokenBoard{space.Client()}, brokenBoard{space.Client()}}
		s.checkOn(t.Context(), boards, func(m *machine, _ *netcheck.Record, err error) {
			if err == nil || !strings.Contains(err.Error(), "the value is too long") {
				t.Errorf("%s: %v", m.name, err)
			}
		})
	})
}

// slowBoard is the leader's. What it reads of the verdict comes too late, and with write so does the answer to what it
// writes of it: others have read that, and the round is over.
type slowBoard struct {
	*memstore.Client
	write bool
}

func (b slowBoard) Set(ctx context.Context, key string, value []byte) error {
	err := b.Client.Set(ctx, key, value)
	if b.write && strings.HasPrefix(key, "plan/") && strings.Contains(string(value), "verdict") {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

func (b slowBoard) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := b.Client.Get(ctx, key)
	if strings.HasPrefix(key, "plan/") && strings.Contains(string(value), "verdict") {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return value, err
}

// TestVerdictEndsRound: a node at fault leaves before the leader has read its own verdict. The leader has to tell of it
// all the same.
func TestVerdictEndsRound(t *testing.T) {
	for _, write := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, 2, netcheck.Rules{})
			s.sick["n1"] = "rows are lost"
			space := memstore.NewSpace()
			ctx, over := context.WithCancel(t.Context())
			defer over()
			boards := []rendezvous.Board{slowBoard{space.Client(), write}, space.Client()}
			s.checkOn(ctx, boards, func(m *machine, record *netcheck.Record, err error) {
				if err != nil || record.Nodes[1].Fault == nil {
					t.Errorf("%s: %+v, %v", m.name, record, err)
				}
				over() // node 1 leaves
			})
		})
	}
}

// lostBoard is the leader's, whose store is lost while nodes test themselves, and the round with it.
type lostBoard struct {
	*memstore.Client
	over context.CancelFunc
}

func (b lostBoard) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasPrefix(key, "result/") {
		return nil, rendezvous.ErrStoreClosed
	}
	return b.Client.Get(ctx, key)
}

func (b lostBoard) Set(ctx context.Context, key string, value []byte) error {
	if strings.HasPrefix(key, "plan/") && !strings.Contains(string(value), `"local"`) {
		b.over()
		return rendezvous.ErrStoreClosed
	}
	return b.Client.Set(ctx, key, value)
}

// TestStoreLostWhileIdle: the leader has nothing to do itself when its store is lost, and says what ended its check.
func TestStoreLostWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memstore.NewSpace()
		checker := netcheck.New(netcheck.Config{
			Node: "n0", Addr: "n0", Devices: 1, Rules: netcheck.Rules{Network: true},
			Log: zerolog.Nop(),
		})
		time.AfterFunc(time.Second, func() { _ = space.Close() })
		record, err := checker.Check(t.Context(), netcheck.Round{Board: space.Client(), Rank: 0, Size: 2}) // the other one never comes
		if !errors.Is(err, rendezvous.ErrStoreClosed) {
			t.Errorf("%+v: %v", record, err)
		}
	})
}

// TestStoreLost blames nobody for a store that is lost.
func TestStoreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, 2, netcheck.Rules{})
		space := memstore.NewSpace()
		ctx, over := context.WithCancel(t.Context())
		defer over()
		boards := []rendezvous.Board{lostBoard{space.Client(), over}, space.Client()}
		s.checkOn(ctx, boards, func(m *machine, record *netcheck.Record, err error) {
			if err == nil {
				t.Errorf("%s: %+v", m.name, record)
			}
		})
	})
}

// foreignBoard has what no agent of the job wrote in the place of one key.
type foreignBoard struct {
	rendezvous.Board
	key string
}

func (b foreignBoard) Get(ctx context.Context, key string) ([]byte, error) {
	if key != b.key {
		return b.Board.Get(ctx, key)
	}
	<-ctx.Done() // as a board does, which waits for what can be believed
	return nil, fmt.Errorf("%w; %w", context.Cause(ctx), rendezvous.ErrUntrusted)
}

// TestForeignWord blames nobody where somebody who is no agent of the job writes in the place of a node's word.
func TestForeignWord(t *testing.T) {
	for _, key := range []string{"hello/1", "result/0/1", "result/1/1"} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, 2, netcheck.Rules{Network: true})
				space := memstore.NewSpace()
				boards := []rendezvous.Board{foreignBoard{space.Client(), key}, space.Client()}
				s.checkOn(t.Context(), boards, func(m *machine, record *netcheck.Record, err error) {
					if err == nil {
						t.Errorf("%s: %+v", m.name, record)
					}
				})
			})
		})
	}
}

package dlrover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous"
)

// pairTest stands for the check program.
type pairTest struct {
	groups *[]rendezvous.PairGroup
	err    error
}

func (p pairTest) Test(_ context.Context, g rendezvous.PairGroup) (float64, error) {
	*p.groups = append(*p.groups, g)
	return 2.5, p.err
}

func (p pairTest) Close() error { return nil }

// TestPairs: a node that waits for the training goes to the network check of DLRover's agents when these wait there,
// and then has its round with them. The master's verdict decides, as it does there.
func TestPairs(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	broken := errors.New("the link is down")
	me, other := []any{1}, []any{0}
	for name, c := range map[string]struct {
		faulty, slow []any
		running      int
		rules        rendezvous.Pairs
		fails        error
		status       int // 0: this node has its round
		rounds       int
		says         []string
	}{
		"good": {running: 2, rounds: 1, says: []string{"NodeEvent NODE_CHECK_SUCCEEDED"}},
		"few":  {faulty: other, running: 2, status: errhint.Undecided, rounds: 1},
		"few failed": {
			faulty: me, running: 3, fails: broken, status: errhint.Undecided, rounds: 1, says: []string{"NodeEvent NODE_CHECK_FAILED"},
		},
		"other": {faulty: other, running: 4, rounds: 2},
		"at fault": {
			faulty: me, running: 4, fails: broken, status: errhint.Faulty, rounds: 2,
			says: []string{"NodeEvent NODE_CHECK_FAILED", "NodeFailure node_error CheckFailure"},
		},
		"slow":      {slow: me, running: 4, rounds: 1},
		"straggler": {slow: me, running: 4, rules: rendezvous.Pairs{Strict: true}, status: errhint.Straggler, rounds: 2},
		"no torch":  {running: 2, status: errhint.Undecided, rules: rendezvous.Pairs{Open: noTest}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 2, 2)
			f.check = checkFake{agents: []int{0}, running: c.running, verdict: func() ([]any, []any) { return c.faulty, c.slow }}
			n := open(t, f, 1)
			var groups []rendezvous.PairGroup
			if c.rules.Open == nil {
				c.rules.Open = func(context.Context) (rendezvous.PairTest, error) { return pairTest{&groups, c.fails}, nil }
			}
			n.AtPairs(c.rules)
			f.with(func() { // what the agent says, whose node comes first in a group
				for round := range 4 {
					f.kv[storeKey(networkCheck, round, 3, keyMasterAddr)] = []byte("10.0.0.1")
					f.kv[storeKey(networkCheck, round, 3, keyMasterPort)] = []byte("2345")
				}
			})
			ended := make(chan error, 1)
			var round rendezvous.Round
			go func() {
				var err error
				round, err = n.Next(t.Context(), rendezvous.Member{LocalWorldSize: 2})
				ended <- err
			}()
			testutil.Eventually(t, time.Minute, "the node waits for the training", func() bool { return f.heard("JoinRendezvousRequest") })
			f.with(func() { f.check.open = true })
			if c.status == 0 {
				testutil.Eventually(t, time.Minute, "the node was tested", func() (judged bool) {
					f.with(func() {
						asked := slices.DeleteFunc(slices.Clone(f.said), func(s string) bool { return s != "StragglerExistRequest" })
						judged = len(asked) == c.rounds
					})
					return judged
				})
				f.with(func() {
					f.kv[torchKey(1, keyMasterAddr)], f.kv[torchKey(1, keyMasterPort)] = []byte("10.0.0.1"), []byte("99")
					f.waiting[0] = 1
				})
			}
			err := <-ended
			unfit, _ := errors.AsType[*rendezvous.UnfitError](err)
			switch {
			case c.status == 0 && (err != nil || !n.Paired() || round.GroupRank != 1 || round.BaseRank != 1 || round.AgentStore):
				t.Errorf("%+v, %v", round, err)
			case c.status != 0 && (unfit == nil || unfit.Status != c.status) && errhint.CodeOf(err) != c.status:
				t.Errorf("%v, want status %d", err, c.status)
			}
			want := slices.Repeat([]rendezvous.PairGroup{{Store: "10.0.0.1:2345", FirstRank: 1, World: 3}}, c.rounds)
			if d := cmp.Diff(want, groups, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			for _, words := range c.says {
				if !f.heard(words) {
					t.Errorf("%q was not said: %q", words, f.said)
				}
			}
		})
	}
}

// TestPairsWithout: a node that others are tested without waits no longer than pend_timeout says.
func TestPairsWithout(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	f.check = checkFake{agents: []int{0}, open: true, without: true}
	n := open(t, f, 1)
	n.cfg.PendTimeout = 200 * time.Millisecond
	n.AtPairs(rendezvous.Pairs{Open: func(context.Context) (rendezvous.PairTest, error) { return pairTest{}, nil }})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := n.Next(ctx, rendezvous.Member{LocalWorldSize: 2})
	if err == nil || errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(err.Error(), "tested without this node") ||
		!strings.Contains(errhint.Of(err), "pend_timeout") {
		t.Error(err)
	}
	if !f.heard("NodeFailure rdzv_error") {
		t.Errorf("the master was not told: %q", f.said)
	}
}

// TestPairsAtRunningJob: agents of DLRover that test nodes look for newcomers in the network check alone. The first node
// of ours that comes while they train goes there.
func TestPairsAtRunningJob(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	f.round, f.world = 1, map[int]int{0: 1, 2: 1}
	f.check = checkFake{agents: []int{0}, rounds: 1, running: 2}
	for round := range 4 {
		f.kv[storeKey(networkCheck, round, 3, keyMasterAddr)] = []byte("10.0.0.1")
		f.kv[storeKey(networkCheck, round, 3, keyMasterPort)] = []byte("2345")
	}
	n := open(t, f, 1)
	var groups []rendezvous.PairGroup
	n.AtPairs(rendezvous.Pairs{Open: func(context.Context) (rendezvous.PairTest, error) { return pairTest{groups: &groups}, nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := n.Next(ctx, rendezvous.Member{LocalWorldSize: 1})
		ended <- err
	}()
	testutil.Eventually(t, time.Minute, "the node is in the network check", func() (tested bool) {
		f.with(func() { tested = f.check.rounds == 2 })
		return tested
	})
	f.with(func() { // the agent meets the node after that
		f.kv[torchKey(2, keyMasterAddr)], f.kv[torchKey(2, keyMasterPort)] = []byte("10.0.0.1"), []byte("99")
	})
	testutil.Eventually(t, time.Minute, "the node waits for the training", func() bool { return f.waits(1) })
	f.with(func() { f.waiting[0] = 1 })
	if err := <-ended; err != nil || len(groups) != 1 || !n.Paired() {
		t.Errorf("%v, %v", err, groups)
	}
}

func noTest(context.Context) (rendezvous.PairTest, error) { return nil, errors.New("no torch") }

package membership_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// job is agents in one bubble of fake time, at one store in memory.
type job struct {
	t     *testing.T
	space *memstore.Space
	cfg   membership.Config
}

func newJob(t *testing.T, minNodes, maxNodes int) *job {
	return &job{t: t, space: memstore.NewSpace(), cfg: membership.Config{
		RunID: "job7", Min: minNodes, Max: maxNodes, Unit: 1, NodeRank: -1, KeepAlive: 2 * time.Second, Attempts: 3,
		JoinTimeout: time.Minute, CloseTimeout: 10 * time.Second, LastCall: 3 * time.Second, ReplaceLimit: -1, BackoffLimit: -1,
		Order: keepRanks, Place: "the store", Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel),
	}}
}

// keepRanks lets survivors keep their ranks as far as there are such, and orders the rest by address.
func keepRanks(places []membership.Placement) []int {
	order := make([]int, len(places))
	for r := range order {
		order[r] = -1
	}
	var rest []int
	for i, p := range places {
		if p.Survivor && p.Rank < len(order) && order[p.Rank] < 0 {
			order[p.Rank] = i
		} else {
			rest = append(rest, i)
		}
	}
	slices.SortStableFunc(rest, func(a, b int) int { return strings.Compare(places[a].Addr, places[b].Addr) })
	for r := range order {
		if order[r] < 0 {
			order[r], rest = rest[0], rest[1:]
		}
	}
	return order
}

// stored decodes what stands under a key of the job; a seal is left out of account.
func (j *job) stored(name string, v any) {
	j.t.Helper()
	text, err := j.space.Client().Get(j.t.Context(), "muster/"+j.cfg.RunID+"/"+name)
	if err == nil {
		body, _, _ := bytes.Cut(text, []byte{'\n'})
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		j.t.Fatal(err)
	}
}

// leadership is how the keys of a term begin.
func (j *job) leadership(term int) string {
	var c struct{ Nonce string }
	j.stored(fmt.Sprintf("t%d/coordinator", term), &c)
	return fmt.Sprintf("muster/%s/t%d.%s/", j.cfg.RunID, term, c.Nonce)
}

// inRound is how the keys of the last round begin.
func (j *job) inRound() string {
	var r struct {
		Round int
		Nonce string
	}
	j.stored("members", &r)
	return fmt.Sprintf("muster/%s/%d.%s/", j.cfg.RunID, r.Round, r.Nonce)
}

// agent is one node. What it tells others it tells those of the round that Next returned last.
type agent struct {
	*membership.Handler
	j     *job
	name  string
	store *memstore.Client
	nexts sync.WaitGroup // calls of Next
	mu    sync.Mutex
	last  rendezvous.Exchange
}

func (a *agent) round() rendezvous.Exchange {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func (a *agent) Verdict() <-chan rendezvous.Verdict { return a.round().Verdict() }
func (a *agent) Tallied() <-chan rendezvous.Tally   { return a.round().Tallied() }
func (a *agent) Board() rendezvous.Board            { return a.round().Board() }
func (a *agent) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	return a.round().Propose(ctx, v)
}

func (a *agent) Tally(ctx context.Context, t rendezvous.Tally) error { return a.round().Tally(ctx, t) }

func (a *agent) Report(ctx context.Context, report []byte) error {
	return a.round().Report(ctx, report)
}
func (a *agent) Reports(ctx context.Context) ([][]byte, error) { return a.round().Reports(ctx) }
func (a *agent) Agree(ctx context.Context, value []byte) ([]byte, error) {
	return a.round().Agree(ctx, value)
}

// Next is the Handler's.
func (a *agent) Next(ctx context.Context, m rendezvous.Member) (rendezvous.Round, error) {
	r, err := a.Handler.Next(ctx, m)
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.last = r.Exchange
	}
	return r, err
}

// start makes an agent; change may alter its configuration.
func (j *job) start(name string, change ...func(*membership.Config)) *agent {
	j.t.Helper()
	store := j.space.Client()
	cfg := j.cfg
	cfg.Node, cfg.Addr, cfg.Store = name, name, store
	cfg.At, cfg.Dial = "store:1", func(context.Context, string) (membership.Conn, error) { return j.space.Client(), nil }
	cfg.Log = cfg.Log.With().Str("agent", name).Logger()
	for _, c := range change {
		c(&cfg)
	}
	h, err := membership.New(cfg)
	if err != nil {
		j.t.Fatal(err)
	}
	a := &agent{Handler: h, j: j, name: name, store: store}
	j.t.Cleanup(func() {
		a.nexts.Wait() // the test's context has ended
		h.Close()
	})
	return a
}

// die ends an agent without a word, as SIGKILL does.
func (a *agent) die() { a.store.Close() }

// next is what Next returned.
type next struct {
	round rendezvous.Round
	err   error
}

// meet calls Next of every agent at once and returns what they get, in their order.
func meet(ctx context.Context, agents ...*agent) []next {
	results := make([]chan next, len(agents))
	for i, a := range agents {
		results[i] = a.begin(ctx)
	}
	got := make([]next, len(agents))
	for i := range agents {
		got[i] = <-results[i]
	}
	return got
}

// coordinator starts an agent, which is the coordinator as it is the first, and returns it and its first round.
func (j *job) coordinator(name string) (*agent, chan next) {
	a := j.start(name)
	first := a.begin(j.t.Context())
	synctest.Wait()
	return a, first
}

func (a *agent) begin(ctx context.Context) chan next {
	c := make(chan next, 1)
	a.nexts.Go(func() {
		r, err := a.Next(ctx, rendezvous.Member{Role: "default", LocalWorldSize: 2})
		c <- next{r, err}
	})
	return c
}

// mustMeet also checks that all are in one round with dense ranks, and returns the ranks by name.
func (j *job) mustMeet(agents ...*agent) (number int, ranks map[string]int) {
	j.t.Helper()
	ranks = map[string]int{}
	var nexts []next
	for i, n := range meet(j.t.Context(), agents...) {
		if n.err != nil {
			j.t.Fatalf("%s: %v", agents[i].name, n.err)
		}
		ranks[agents[i].name] = n.round.GroupRank
		nexts = append(nexts, n)
	}
	seen := make([]bool, len(nexts))
	for i, n := range nexts {
		r := n.round
		if r.Number != nexts[0].round.Number || r.GroupWorldSize != len(agents) || r.WorldSize != 2*len(agents) ||
			r.BaseRank != 2*r.GroupRank ||
			r.RoleWorldSize != r.WorldSize || r.BaseRoleRank != r.BaseRank || r.MasterAddr != nexts[0].round.MasterAddr || !r.AgentStore {
			j.t.Errorf("%s: round %+v", agents[i].name, r)
		}
		if seen[r.GroupRank] {
			j.t.Errorf("rank %d was given twice", r.GroupRank)
		}
		seen[r.GroupRank] = true
	}
	return nexts[0].round.Number, ranks
}

// verdict waits for the verdict on an agent's round.
func (a *agent) verdict() rendezvous.Verdict {
	a.j.t.Helper()
	select {
	case v := <-a.Verdict():
		return v
	case <-time.After(time.Minute):
		a.j.t.Fatalf("%s: no verdict", a.name)
		return rendezvous.Verdict{}
	}
}

// TestStopAwaitsNoDeadCoordinator: a node that is stopped has no time to lose for what a coordinator says that is gone. What
// it has said itself counts for who is left.
func TestStopAwaitsNoDeadCoordinator(t *testing.T) {
	for name, c := range map[string]struct {
		v     rendezvous.Verdict
		waits bool
	}{
		"node":    {rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeStopped", Rank: -1}, false},
		"job":     {rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "StopRequested", Rank: -1, Status: 143}, false},
		"restart": {rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 3, Status: 7, Restarts: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 1, 3)
				a, first := j.coordinator("a")
				b, left := j.start("b"), j.start("c")
				meet(t.Context(), b, left)
				<-first
				a.die()
				died := time.Now()
				v, err := b.Propose(t.Context(), c.v)
				if took := time.Since(died); err != nil || took > time.Second != c.waits {
					t.Errorf("%+v, %v after %v", v, err, took)
				}
				c.v.Node = "b"
				if got := left.verdict(); v != c.v || got != v {
					t.Errorf("b hears %+v, and c %+v, want %+v", v, got, c.v)
				}
			})
		})
	}
}

func TestNodesMeetAndRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 3)
		a, b, c := j.start("a"), j.start("b"), j.start("c")
		began := time.Now()
		number, ranks := j.mustMeet(c, a, b)
		if took := time.Since(began); took > 0 {
			t.Errorf("all nodes were there, and the round began %v later", took)
		}
		if diff := cmp.Diff(map[string]int{"a": 0, "b": 1, "c": 2}, ranks); diff != "" || number != 0 {
			t.Errorf("round %d (-want +got):\n%s", number, diff)
		}
		v, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 3, Status: 7, Restarts: 1})
		if err != nil || v.Node != "b" || v.Kind != rendezvous.Restart {
			t.Fatalf("%+v, %v", v, err)
		}
		if late, err := c.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Fail, Status: 9}); err != nil || late != v {
			t.Errorf("the second proposal counts: %+v, %v", late, err)
		}
		for _, x := range []*agent{a, b, c} {
			if got := x.verdict(); got != v {
				t.Errorf("%s hears %+v, want %+v", x.name, got, v)
			}
		}
		got := meet(t.Context(), b, c, a)
		for i, n := range got {
			if n.err != nil || n.round.Number != 1 || n.round.Restarts != 1 || n.round.Replacements != 0 {
				t.Errorf("agent %d: %+v, %v", i, n.round, n.err)
			}
		}
		if got[0].round.GroupRank != 1 || got[1].round.GroupRank != 2 || got[2].round.GroupRank != 0 {
			t.Error("ranks have changed")
		}
	})
}

func TestLostNode(t *testing.T) {
	for _, whose := range []string{"coordinator", "other"} {
		t.Run(whose, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 2, 3)
				a, first := j.coordinator("a")
				b, c := j.start("b"), j.start("c")
				meet(t.Context(), b, c)
				<-first
				dead, left := c, []*agent{a, b}
				if whose == "coordinator" {
					dead, left = a, []*agent{c, b}
				}
				died := time.Now()
				dead.die()
				for _, x := range left {
					v := x.verdict()
					if v.Kind != rendezvous.Reassemble || v.Reason != "NodeLost" || v.Subject != dead.name ||
						!strings.HasPrefix(v.Message, "node "+dead.name) {
						t.Errorf("%s: %+v", x.name, v)
					}
				}
				number, _ := j.mustMeet(left...)
				if took := time.Since(died); took > 10*time.Second {
					t.Errorf("new round after %v", took)
				}
				if number != 1 {
					t.Errorf("round %d", number)
				}
			})
		})
	}
}

func TestScaleUpAndSpares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		a, b, c, d := j.start("a"), j.start("b"), j.start("c"), j.start("d")
		began := time.Now()
		j.mustMeet(a, b)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("round began after %v, want the last call", took)
		}
		third := c.begin(t.Context())
		for _, x := range []*agent{a, b} {
			if v := x.verdict(); v.Kind != rendezvous.Reassemble || v.Reason != "ScaleUp" {
				t.Errorf("%+v", v)
			}
		}
		fa, fb := a.begin(t.Context()), b.begin(t.Context())
		r := <-third
		if r.err != nil || r.round.GroupRank != 2 || r.round.GroupWorldSize != 3 {
			t.Fatalf("%+v", r)
		}
		<-fa
		<-fb
		spare := d.begin(t.Context())
		time.Sleep(5 * time.Minute) // much more than the join timeout
		select {
		case v := <-a.Verdict():
			t.Fatalf("a spare ends the round: %+v", v)
		case n := <-spare:
			t.Fatalf("a spare takes part: %+v", n)
		default:
		}
		b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Message: "done"})
		n := <-spare
		if over, ok := errors.AsType[*rendezvous.OverError](n.err); !ok || over.Verdict.Kind != rendezvous.Succeed {
			t.Errorf("the spare hears %+v", n)
		}
	})
}

func TestSpareTakesThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		j.cfg.Spares = 1
		a, b, c := j.start("a"), j.start("b"), j.start("c")
		spare := c.begin(t.Context())
		time.Sleep(time.Second)
		fa, fb := a.begin(t.Context()), b.begin(t.Context())
		var in []*agent
		var out chan next
		time.Sleep(5 * time.Second)
		synctest.Wait()
		for _, x := range []struct {
			a *agent
			c chan next
		}{{a, fa}, {b, fb}, {c, spare}} {
			if len(x.c) == 1 {
				in = append(in, x.a)
			} else {
				out = x.c
			}
		}
		if len(in) != 2 {
			t.Fatalf("%d nodes take part, want 2 and a spare: %v", len(in), len(fa)+len(fb)+len(spare))
		}
		in[1].die()
		in[0].verdict()
		again := in[0].begin(t.Context())
		n := <-out
		if n.err != nil || n.round.GroupWorldSize != 2 || n.round.Replacements != 1 {
			t.Errorf("the spare gets %+v", n)
		}
		<-again
	})
}

func TestNodeUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 6)
		j.cfg.Unit = 2
		var agents []*agent
		var firsts []chan next
		for i := range 3 {
			a := j.start(fmt.Sprint(i))
			agents, firsts = append(agents, a), append(firsts, a.begin(t.Context()))
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		running := 0
		for _, f := range firsts {
			running += len(f)
		}
		if running != 2 {
			t.Fatalf("%d nodes run, want 2 of 3", running)
		}
		fourth := j.start("3")
		f := fourth.begin(t.Context())
		time.Sleep(4 * time.Second)
		var again []chan next
		for i, a := range agents {
			if len(firsts[i]) == 1 {
				a.verdict()
				again = append(again, a.begin(t.Context()))
			}
		}
		if n := <-f; n.err != nil || n.round.GroupWorldSize != 4 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		for _, c := range again {
			<-c
		}
	})
}

func TestFixedRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 3)
		j.cfg.Fixed = true
		rank := func(n int) func(*membership.Config) { return func(c *membership.Config) { c.NodeRank = n } }
		a, b, c := j.start("a", rank(2)), j.start("b", rank(0)), j.start("c", rank(0))
		fa, fb := a.begin(t.Context()), b.begin(t.Context())
		time.Sleep(time.Second)
		n := <-c.begin(t.Context())
		if n.err == nil || errhint.CodeOf(n.err) != errhint.TryAgain ||
			!strings.Contains(n.err.Error(), "node rank 0 is taken by b: node c was started with the same") {
			t.Errorf("the second node with rank 0: %v", n.err)
		}
		d := j.start("d", rank(1))
		if n := <-d.begin(t.Context()); n.err != nil || n.round.GroupRank != 1 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		if n := <-fa; n.round.GroupRank != 2 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		if n := <-fb; n.round.GroupRank != 0 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		// A node that was restarted takes the place of its dead predecessor.
		d.die()
		e := j.start("e", rank(1))
		fe := e.begin(t.Context())
		a.verdict()
		b.verdict()
		fa, fb = a.begin(t.Context()), b.begin(t.Context())
		if n := <-fe; n.err != nil || n.round.GroupRank != 1 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		<-fa
		<-fb
	})
}

func TestJoinTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		n := <-j.start("a").begin(t.Context())
		if n.err == nil || errhint.CodeOf(n.err) != errhint.TryAgain ||
			!strings.Contains(n.err.Error(), "1 of 2 nodes are there: a; 1 more to come") {
			t.Errorf("%v", n.err)
		}
	})
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.JoinTimeout = 10 * time.Second
		token := func(s string) func(*membership.Config) { return func(c *membership.Config) { c.Token = []byte(s) } }
		first := j.start("a", token("secret")).begin(t.Context())
		synctest.Wait()
		for _, other := range []string{"", "another"} {
			n := <-j.start("b"+other, token(other)).begin(t.Context())
			if n.err == nil || !strings.Contains(n.err.Error(), "token") {
				t.Errorf("token %q: %+v", other, n)
			}
		}
		if n := <-j.start("c", token("secret")).begin(t.Context()); n.err != nil {
			t.Error(n.err)
		}
		<-first
	})
}

func TestWordsBetweenAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		a, first := j.coordinator("a")
		b := j.start("b")
		<-b.begin(t.Context())
		<-first
		for x, n := range map[*agent]rendezvous.Tally{a: {Ended: 2}, b: {Ended: 2, Failed: 1}} {
			select {
			case sum := <-a.Tallied():
				t.Errorf("not all have ended, and a is told %+v", sum)
			default:
			}
			if err := x.Tally(t.Context(), n); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if sum := <-a.Tallied(); sum != (rendezvous.Tally{Ended: 4, Failed: 1}) { // a has rank 0
			t.Error(sum)
		}
		if len(b.Tallied()) > 0 {
			t.Error("two agents are to decide")
		}
		if err := a.Report(t.Context(), []byte("why")); err != nil {
			t.Error(err)
		}
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r, err := a.Reports(early); len(r) != 1 || string(r[0]) != "why" || err != nil {
			t.Errorf("%q, %v", r, err)
		}
		if err := b.Report(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if r, err := b.Reports(t.Context()); len(r) != 1 || string(r[0]) != "why" || err != nil {
			t.Errorf("%q, %v", r, err)
		}
		x, _ := a.Agree(t.Context(), []byte("1"))
		y, _ := b.Agree(t.Context(), []byte("2"))
		if string(x) != "1" || string(y) != "1" {
			t.Errorf("agreed on %q and %q", x, y)
		}
		a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed})
		b.verdict()
		closed := make(chan struct{})
		go func() { a.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("the coordinator leaves before the others")
		default:
		}
		b.Close()
		<-closed
	})
}

// TestOtherChecks: where nodes examine each other, one that would start its workers at once, or test something else, is
// refused at the door, and the others meet without it.
func TestOtherChecks(t *testing.T) {
	const network, both = "--network-check", "--network-check --switchbox-check"
	for _, c := range []struct{ job, odd, want string }{
		{network, "", "node odd was started without --network-check, and this job with --network-check"},
		{"", both, "node odd was started with --network-check --switchbox-check, and this job without --network-check"},
		{both, network, "node odd was started with --network-check, and this job with --network-check --switchbox-check"},
	} {
		t.Run(c.want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 2, 2)
				var log testutil.Buffer
				j.cfg.Checks, j.cfg.Log = c.job, zerolog.New(&log)
				a, odd := j.start("a"), j.start("odd", func(cfg *membership.Config) { cfg.Checks = c.odd })
				first := a.begin(t.Context())
				time.Sleep(time.Second) // a coordinates
				_, err := odd.Next(t.Context(), rendezvous.Member{Role: "default", LocalWorldSize: 2})
				if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v", err)
				}
				_, err = j.start("b").Next(t.Context(), rendezvous.Member{Role: "default", LocalWorldSize: 2})
				if got := <-first; err != nil || got.err != nil || got.round.GroupWorldSize != 2 {
					t.Errorf("%+v, %v", got, err)
				}
				if !strings.Contains(log.String(), "join refused") || !strings.Contains(log.String(), "node odd was started") {
					t.Errorf("the coordinator says:\n%s", log.String())
				}
			})
		})
	}
}

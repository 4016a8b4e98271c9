package membership_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// middle stands between one agent and the store: what is held back of a call is answered by it, or never.
type middle struct {
	*memstore.Client
	keeps func(op, key string) bool                  // the request does not arrive: a Set is answered, others are not
	takes func(key string, value []byte) (took bool) // a Set that somebody else does, later
	stale func(key string) (value []byte, is bool)   // an answer to a CompareAndSet in the place of the store's
	mute  *atomic.Bool                               // nothing arrives, and nothing is answered
}

// unheard waits until ctx ends where nothing is answered.
func (m *middle) unheard(ctx context.Context) error {
	if m.mute == nil || !m.mute.Load() {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (m *middle) keep(ctx context.Context, op, key string) error {
	if err := m.unheard(ctx); err != nil {
		return err
	}
	if m.keeps == nil || !m.keeps(op, key) {
		return nil
	}
	if op == "set" {
		return errKept
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

type keptError struct{}

func (keptError) Error() string { return "kept" }

var errKept = keptError{}

func (m *middle) Set(ctx context.Context, key string, value []byte) error {
	switch err := m.keep(ctx, "set", key); {
	case err == errKept: //nolint:errorlint // it is never wrapped
		return nil
	case err != nil:
		return err
	case m.takes != nil && m.takes(key, value):
		return nil
	}
	return m.Client.Set(ctx, key, value)
}

func (m *middle) Get(ctx context.Context, key string) ([]byte, error) {
	if err := m.keep(ctx, "get", key); err != nil {
		return nil, err
	}
	value, err := m.Client.Get(ctx, key)
	return value, errors.Join(err, m.unheard(ctx))
}

func (m *middle) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := m.keep(ctx, "cas", key); err != nil {
		return nil, err
	}
	if m.stale != nil {
		if value, is := m.stale(key); is {
			return value, nil
		}
	}
	return m.Client.CompareAndSet(ctx, key, expected, desired)
}

// inTheMiddle is a job of one to two nodes with a token in which somebody stands between b and the store. a is the
// coordinator.
func inTheMiddle(t *testing.T, m *middle, change ...func(*membership.Config)) (j *job, a, b *agent) {
	j = newJob(t, 1, 2)
	j.cfg.Token = jobToken
	for _, c := range change {
		c(&j.cfg)
	}
	a = j.start("a")
	first := a.begin(t.Context())
	synctest.Wait()
	b = j.start("b", func(c *membership.Config) {
		m.Client = j.space.Client()
		c.Store = m
	})
	second := b.begin(t.Context())
	for _, c := range []chan next{first, second} {
		if n := <-c; n.err != nil || n.round.GroupWorldSize != 2 {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
	}
	time.Sleep(10 * time.Second)
	return j, a, b
}

// leaseOf follows the leases of an agent.
func leaseOf(a *agent) (now func() time.Time) {
	var mu sync.Mutex
	var lease time.Time
	leases := a.Lease()
	go func() {
		for {
			select {
			case until := <-leases:
				mu.Lock()
				lease = until
				mu.Unlock()
			case <-a.j.t.Context().Done():
				return
			}
		}
	}()
	return func() time.Time {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return lease
	}
}

// TestVerdictKeptBack: everything arrives at b but for the verdict. The coordinator's heartbeats say that the round is
// over.
func TestVerdictKeptBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept atomic.Bool
		_, a, b := inTheMiddle(t, &middle{keeps: func(_, key string) bool {
			return (strings.HasSuffix(key, "/verdict") || strings.HasSuffix(key, "/decided")) && strings.Contains(key, "/0.") &&
				!kept.Load()
		}})
		defer kept.Store(true)
		if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}); err != nil {
			t.Fatal(err)
		}
		a.verdict()
		again := a.begin(t.Context())
		if v := b.verdict(); v.Kind != rendezvous.Reassemble || v.Reason != "RoundOver" || v.Grace == 0 || v.Message == "" {
			t.Errorf("b hears %+v", v)
		}
		for _, c := range []chan next{again, b.begin(t.Context())} {
			if n := <-c; n.err != nil || n.round.Number != 1 || n.round.GroupWorldSize != 2 || n.round.Restarts != 1 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
	})
}

// TestAnsweredInTheMiddle: somebody answers the heartbeats of b in the place of the store, and keeps the verdict from
// it. The coordinator goes on without b: by then the workers of b have ended.
func TestAnsweredInTheMiddle(t *testing.T) {
	for _, what := range []string{
		"its heartbeats and the verdict", "all that it says, and the verdict",
		"the heartbeats of both, and the verdict",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var strikes atomic.Bool
				_, a, b := inTheMiddle(t, &middle{keeps: func(op, key string) bool {
					beat, verdict := strings.Contains(key, "/beat/"), strings.HasSuffix(key, "/verdict") ||
						strings.HasSuffix(key, "/decided")
					switch {
					case !strikes.Load():
						return false
					case op == "cas" && beat:
						return what == "the heartbeats of both, and the verdict"
					case what == "all that it says, and the verdict":
						return op == "set" || verdict
					}
					return beat || verdict
				}})
				defer strikes.Store(false)
				lease := leaseOf(b)
				heard := make(chan struct{})
				var ended time.Time // of b's workers, by a verdict
				go func() {
					defer close(heard)
					select {
					case v := <-b.Verdict():
						ended = time.Now().Add(v.Grace)
					case <-t.Context().Done():
					}
				}()
				strikes.Store(true)
				if v := a.verdict(); v.Kind != rendezvous.Reassemble {
					t.Errorf("a hears %+v", v)
				}
				if n := <-a.begin(t.Context()); n.err != nil || n.round.GroupWorldSize != 1 {
					t.Fatalf("%+v, %v", n.round, n.err)
				}
				if until := lease(); until.IsZero() || until.After(time.Now()) {
					t.Errorf("a trains alone, and the lease of b lasts %v longer: two worlds", time.Until(until))
				}
				select {
				case <-heard:
					if ended.After(time.Now()) {
						t.Errorf("workers of b have %v left", time.Until(ended))
					}
				case <-time.After(time.Minute):
					t.Error("b does not hear that its round is over")
				}
			})
		})
	}
}

// TestSavedUpHeartbeats: somebody passes the heartbeats of b on late, and b dies. What is saved up by then, and passed
// on slowly, does not keep it alive for long.
func TestSavedUpHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 2 * time.Second // less than a node may be silent
		var dead, strikes atomic.Bool
		var j *job
		release := make(chan func(), 1000)
		m := &middle{takes: func(key string, value []byte) bool {
			if !strings.Contains(key, "/beat/") || !strikes.Load() {
				return false
			}
			release <- func() { j.space.Put(key, value) }
			time.AfterFunc(late, func() {
				if !dead.Load() {
					(<-release)()
				}
			})
			return true
		}}
		victim, a, _ := inTheMiddle(t, m)
		j = victim
		strikes.Store(true)
		time.Sleep(20 * time.Second)
		select {
		case v := <-a.Verdict():
			t.Fatalf("b lives, and a hears %+v", v)
		default:
		}
		dead.Store(true)
		died := time.Now()
		_ = m.Close()
		strikes.Store(false)
		var releasing sync.WaitGroup
		defer releasing.Wait()
		releasing.Go(func() {
			for len(release) > 0 {
				time.Sleep(3500 * time.Millisecond)
				(<-release)()
			}
		})
		if v := a.verdict(); v.Reason != "NodeLost" && v.Reason != "NodeUnheard" {
			t.Errorf("%+v", v)
		}
		if took := time.Since(died); took > 10*time.Second { // twice as long as a node may be silent, and a look
			t.Errorf("b is dead for %v until that is noticed", took)
		}
	})
}

// decisionsOf keeps from b what the coordinator has decided, until it is let through.
func decisionsOf(let *atomic.Bool) *middle {
	return &middle{keeps: func(op, key string) bool {
		return !let.Load() && op == "get" && (strings.HasSuffix(key, "/verdict") || strings.HasSuffix(key, "/decided"))
	}}
}

// TestVerdictDeleted: a verdict is deleted after one agent has read it and before the other has, who proposes another
// one.
func TestVerdictDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var let atomic.Bool
		j, a, b := inTheMiddle(t, decisionsOf(&let))
		defer let.Store(true)
		if v, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Fail, Rank: 0, Status: 7}); err != nil || v.Status != 7 {
			t.Fatalf("%+v, %v", v, err)
		}
		synctest.Wait()
		for _, name := range []string{"verdict", "decided"} {
			j.space.Put(j.inRound()+name, nil)
		}
		proposed := make(chan struct{})
		go func() {
			defer close(proposed)
			if v, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Fail, Rank: 2, Status: 9}); err != nil ||
				v.Status != 7 {
				t.Errorf("b ends with %+v, %v, and a with 7", v, err)
			}
		}()
		synctest.Wait()
		let.Store(true)
		<-proposed
	})
}

// TestAgreedDeleted: what agents have agreed on is deleted after one of them has read it. Both leave with the same.
func TestAgreedDeleted(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			j, a, b := inTheMiddle(t, &middle{})
			agents := []*agent{a, b}
			if first == "b" {
				agents = []*agent{b, a}
			}
			if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Fail, Rank: 0, Status: 7}); err != nil {
				t.Fatal(err)
			}
			for i, x := range agents {
				x.verdict()
				if got, err := x.Agree(t.Context(), []byte{byte('7' + i)}); err != nil || string(got) != "7" {
					t.Errorf("%s leaves with %q, %v", x.name, got, err)
				}
				for _, name := range []string{"agreed", "settled"} {
					j.space.Put(j.inRound()+name, nil)
				}
			}
		})
	}
}

// TestHeartbeatsGarbled: somebody writes garbage over each heartbeat of a node, the coordinator or the other. No node
// is lost by that: no restart is used up where none is left, and what is said names what happens, and no node as dead.
// Where that goes on without end, the job ends with that name; once in a while does not add up.
func TestHeartbeatsGarbled(t *testing.T) {
	for _, whose := range []string{"a", "b"} { // a is the coordinator
		for i, pause := range []time.Duration{0, 2 * time.Minute} {
			if thin(i) {
				continue
			}
			t.Run(fmt.Sprint(whose, "/", pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { garble(t, whose, pause) })
			})
		}
	}
}

// garble is a job in which heartbeats are garbled until the round ends, and again after a pause, 0 for always.
func garble(t *testing.T, whose string, pause time.Duration) {
	var strikes atomic.Bool
	var space *memstore.Space
	m := &middle{takes: func(key string, _ []byte) bool {
		if !strikes.Load() || !strings.Contains(key, "/beat/") {
			return false
		}
		space.Put(key, []byte("garbage"))
		return true
	}}
	j := newJob(t, 2, 2)
	space, j.cfg.Token, j.cfg.ReplaceLimit = j.space, jobToken, 0
	through := func(c *membership.Config) {
		if c.Node == whose {
			m.Client = j.space.Client()
			c.Store = m
		}
	}
	agents := []*agent{j.start("a", through), j.start("b", through)}
	begin := func() (rounds []rendezvous.Round, errs []error) {
		var nexts []chan next
		for _, x := range agents {
			nexts = append(nexts, x.begin(t.Context()))
			synctest.Wait() // a is the coordinator
		}
		for _, n := range nexts {
			n := <-n
			rounds, errs = append(rounds, n.round), append(errs, n.err)
		}
		return rounds, errs
	}
	const enough = 12
	for n := range enough {
		rounds, errs := begin()
		if err := errors.Join(errs...); err != nil && pause == 0 {
			if n < 5 || errs[0] == nil || errs[1] == nil || !strings.Contains(err.Error(), "did not arrive") ||
				errhint.CodeOf(errs[0]) != errhint.TryAgain {
				t.Errorf("after %d rounds: %v", n, err)
			}
			return
		} else if err != nil || rounds[0].GroupWorldSize != 2 || rounds[1].Replacements != 0 {
			t.Fatalf("after %d rounds: %+v, %v", n, rounds, err)
		}
		time.Sleep(pause)
		for _, x := range agents {
			select {
			case v := <-x.Verdict():
				t.Fatalf("nobody disturbs anything, and %s hears %+v", x.name, v)
			default:
			}
		}
		strikes.Store(true)
		for _, x := range agents {
			v := x.verdict()
			if v.Kind != rendezvous.Reassemble || v.Reason != "HeartbeatsGarbled" && v.Reason != "NodeUnheard" {
				t.Fatalf("%s hears %+v", x.name, v)
			}
		}
		strikes.Store(pause == 0)
	}
	if pause == 0 {
		t.Errorf("they go on after %d rounds", enough)
	}
}

// TestCoordinatorApart: somebody answers the coordinator in the place of the store, and keeps from the others that it
// lives. They follow it as coordinator and go on: by then its workers have ended.
func TestCoordinatorApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		j.cfg.Token = jobToken
		var strikes, over atomic.Bool
		defer over.Store(true)
		m := &middle{Client: j.space.Client(), keeps: func(op, key string) bool {
			return op == "set" && strikes.Load() || strings.HasSuffix(key, "/verdict") && !over.Load()
		}}
		a := j.start("a", func(c *membership.Config) { c.Store = m })
		first := a.begin(t.Context())
		synctest.Wait()
		b, c := j.start("b"), j.start("c")
		meet(t.Context(), b, c)
		if n := <-first; n.err != nil || n.round.GroupWorldSize != 3 {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
		time.Sleep(10 * time.Second)
		lease := leaseOf(a)
		if until := lease(); until.Before(time.Now().Add(3 * time.Second)) {
			t.Errorf("all is well, and the lease of a ends in %v", time.Until(until))
		}
		strikes.Store(true)
		defer strikes.Store(false)
		b.verdict()
		c.verdict()
		for _, n := range meet(t.Context(), b, c) {
			if n.err != nil || n.round.GroupWorldSize != 2 {
				t.Fatalf("%+v, %v", n.round, n.err)
			}
		}
		if until := lease(); until.IsZero() || until.After(time.Now()) {
			t.Errorf("b and c train, and the lease of a lasts %v longer: two worlds", time.Until(until))
		}
	})
}

// TestFullStoreIsNamed: an agent that waits in vain at a store that closes who adds to it says so.
func TestFullStoreIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.space.Put("muster/full", []byte("no room in the store: 1048576 bytes"))
		n := <-j.start("a").begin(t.Context())
		if hint := errhint.Of(n.err); !strings.Contains(hint, "the store is full") || !strings.Contains(hint, "1048576") {
			t.Errorf("%v\nhint: %s", n.err, hint)
		}
	})
}

// TestTermGarbled: somebody writes garbage over the record of who has the leadership, once, and a round ends. All take
// part in the next one. Where the garbage comes back each time, an agent that was in the job ends with a status that
// lets it be tried again.
func TestTermGarbled(t *testing.T) {
	const key = "muster/job7/term"
	for _, always := range []bool{false, true} {
		t.Run(fmt.Sprint(always), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, a, b, c := threeAt(t, nil)
				if always {
					j.space.Tamper(func(k string, value []byte) ([]byte, bool) {
						if k == key {
							value = []byte("garbage")
						}
						return value, true
					})
				}
				if _, err := a.Propose(t.Context(),
					rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}); err != nil {
					t.Fatal(err)
				}
				for _, x := range []*agent{a, b, c} {
					x.verdict()
				}
				j.space.Put(key, []byte("garbage"))
				for _, n := range []chan next{a.begin(t.Context()), b.begin(t.Context()), c.begin(t.Context())} {
					n := <-n
					if !always && (n.err != nil || n.round.GroupWorldSize != 3) {
						t.Errorf("%+v, %v", n.round, n.err)
					}
					if always && (n.err == nil || errhint.CodeOf(n.err) != errhint.TryAgain) {
						t.Errorf("%+v, %v", n.round, n.err)
					}
				}
			})
		})
	}
}

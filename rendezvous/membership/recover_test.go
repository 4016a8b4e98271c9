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

// TestSpareAfterRackIsLost: a node that was in a round waits as a spare. The host and the first three standbys lose
// power; more than half of the round is left.
func TestSpareAfterRackIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 5, 9)
		var lives sync.WaitGroup
		var all []*agent
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprintf("n%d", i))
		}
		for _, name := range names[:9] {
			all = append(all, n.node(name, "n0"))
			n.live(all[len(all)-1], &lives)
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		all = append(all, n.node("n9", "n0")) // a spare
		n.live(all[9], &lives)
		time.Sleep(5 * time.Second)
		for _, x := range names { // n8 is lost, n9 takes its place, and n8 comes back
			if x != "n8" {
				n.split("n8", x)
			}
		}
		time.Sleep(8 * time.Second)
		n.heal(names)
		time.Sleep(20 * time.Second)
		t.Log(time.Now())
		n.split("n0 n1 n2 n3", "n4 n5 n6 n7 n8 n9")
		time.Sleep(60 * time.Second)
		n.overlaps()
		n.mu.Lock()
		if err := n.errs["n8"]; err != nil {
			t.Errorf("n8: %v", err)
		}
		n.mu.Unlock()
		n.end(all...)
		n.allEnd(&lives)
	})
}

// TestHostOfTwoReturns: two nodes, K = 5 s. The link heals 16 s after the loss was noticed, of the 20 s in which the
// host is looked for. A SYN is sent again 1, 3, 7, 15 and 31 s after the first one.
func TestHostOfTwoReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 1, 2)
		n.cfg.KeepAlive = 5 * time.Second
		a := n.node("a", "a")
		var lives sync.WaitGroup
		n.live(a, &lives)
		synctest.Wait()
		b := n.node("b", "a", syn(n, "b"))
		meet(t.Context(), b)
		time.Sleep(30 * time.Second)
		n.split("a", "b")
		v := b.verdict()
		lost := time.Now()
		t.Log(v.Message)
		go func() {
			time.Sleep(16 * time.Second)
			n.heal([]string{"a", "b"})
		}()
		g := <-b.begin(t.Context())
		t.Logf("b: %v after the loss", time.Since(lost))
		if g.err != nil {
			t.Errorf("b: %v", g.err)
		}
		n.end(a, b)
		lives.Wait()
	})
}

// syn dials as the kernel does.
func syn(n *network, from string) func(*membership.Config) {
	return func(c *membership.Config) {
		c.Dial = func(ctx context.Context, addr string) (membership.Conn, error) {
			to, _, _ := strings.Cut(addr, ":")
			for wait := time.Second; n.link(from, to).cut.Load() && from != to; wait *= 2 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			return n.dial(ctx, from, to)
		}
	}
}

// TestForeignMembers: somebody without the token has replaced what the next coordinator reads of the last round. It is
// no fault of this agent that it cannot go on.
func TestForeignMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		j.cfg.Token = jobToken
		a, b := j.start("a"), j.start("b")
		first := a.begin(t.Context())
		synctest.Wait() // a is the coordinator
		second := b.begin(t.Context())
		for _, n := range []next{<-first, <-second} {
			if n.err != nil {
				t.Fatal(n.err)
			}
		}
		a.die()
		b.verdict()
		if err := j.space.Client().Set(t.Context(), "muster/"+j.cfg.RunID+"/members", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if n := <-b.begin(t.Context()); !errors.Is(n.err, rendezvous.ErrUntrusted) || errhint.CodeOf(n.err) != errhint.TryAgain {
			t.Errorf("%+v, %v: status %d, want %d", n.round, n.err, errhint.CodeOf(n.err), errhint.TryAgain)
		}
	})
}

// TestFarCoordinator: the coordinator is far from the store, and nobody is lost for that.
func TestFarCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 3)
		a := j.start("a", func(c *membership.Config) { c.Store = &wire{Client: j.space.Client(), late: 350 * time.Millisecond} })
		first := a.begin(t.Context())
		time.Sleep(5 * time.Second) // a is the coordinator
		agents := []*agent{a, j.start("b"), j.start("c")}
		for _, c := range []chan next{agents[1].begin(t.Context()), agents[2].begin(t.Context()), first} {
			if n := <-c; n.err != nil {
				t.Fatal(n.err)
			}
		}
		time.Sleep(time.Minute)
		for _, x := range agents {
			if len(x.Verdict()) > 0 {
				t.Errorf("%s hears %+v", x.name, x.verdict())
			}
		}
	})
}

// TestAllOthersDie: the nodes of a job without a token are at some distance from the store, and all but the
// coordinator's die at once. Its workers are not killed before it says so: nobody else can have its leadership while it
// is heard in the store.
func TestAllOthersDie(t *testing.T) {
	for after := time.Duration(0); after < 500*time.Millisecond; after += 40 * time.Millisecond {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 1, 3)
				var agents []*agent
				var nexts []chan next
				var ways []*wire
				for _, name := range []string{"a", "b", "c"} {
					w := &wire{Client: j.space.Client(), late: 100 * time.Millisecond}
					x := j.start(name, func(c *membership.Config) { c.Store = w })
					agents, nexts, ways = append(agents, x), append(nexts, x.begin(t.Context())), append(ways, w)
					time.Sleep(130 * time.Millisecond)
				}
				for _, n := range nexts {
					if n := <-n; n.err != nil || n.round.GroupWorldSize != 3 {
						t.Fatalf("%+v, %v", n.round, n.err)
					}
				}
				a := agents[0]
				lease := leaseOf(a)
				time.Sleep(10*time.Second + after)
				for _, w := range ways[1:] {
					_ = w.Close()
				}
				for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
					if until := lease(); !until.After(time.Now()) {
						t.Fatalf("the workers of the coordinator are killed %v after the others have died; a verdict is there: %v",
							time.Since(began), len(a.Verdict()) > 0)
					}
				}
				if v := a.verdict(); v.Reason != "NodeLost" {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// slowOnce is a store that takes long for one heartbeat, and answers others meanwhile.
type slowOnce struct {
	*memstore.Client
	next atomic.Bool
	late time.Duration
}

func (s *slowOnce) Set(ctx context.Context, key string, value []byte) error {
	err := s.Client.Set(ctx, key, value)
	if strings.Contains(key, "/beat/") && s.next.CompareAndSwap(true, false) {
		time.Sleep(s.late)
	}
	return err
}

// TestLateAnswer: the answer to the heartbeat of a wish comes after those to later ones. The store has answered since.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		store := &slowOnce{Client: j.space.Client(), late: 3950 * time.Millisecond} // a store may be silent for 4 s
		a, b := j.start("a", func(c *membership.Config) { c.Store = store }), j.start("b")
		j.mustMeet(a, b)
		if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}); err != nil {
			t.Fatal(err)
		}
		b.verdict()
		time.Sleep(100 * time.Millisecond) // the heartbeats go their own way
		store.next.Store(true)
		first, second := a.begin(t.Context()), b.begin(t.Context())
		for _, c := range []chan next{first, second} {
			if n := <-c; n.err != nil || n.round.GroupWorldSize != 2 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
		time.Sleep(5 * time.Second)
		if len(a.Verdict()) > 0 {
			t.Errorf("the round ends with %+v", a.verdict())
		}
	})
}

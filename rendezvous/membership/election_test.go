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

// hosts is nodes each of which has a store of its own, and a network between them.
type hosts struct {
	*job
	mu     sync.Mutex
	spaces map[string]*memstore.Space // by address
	cuts   map[string]*atomic.Bool    // whether a node is cut off from the others
	ports  int
}

func newHosts(t *testing.T, minNodes, maxNodes int) *hosts {
	return &hosts{job: newJob(t, minNodes, maxNodes), spaces: map[string]*memstore.Space{}, cuts: map[string]*atomic.Bool{}}
}

// wire is a connection that hangs while one of its ends is cut off.
type wire struct {
	*memstore.Client
	cuts []*atomic.Bool
	late time.Duration // each request, and each answer
}

func (w *wire) through(ctx context.Context, do func() error) error {
	for _, when := range []func() error{func() error { return nil }, do} {
		err := when()
		time.Sleep(w.late)
		for _, c := range w.cuts {
			for c.Load() {
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *wire) Set(ctx context.Context, key string, value []byte) error {
	return w.through(ctx, func() error { return w.Client.Set(ctx, key, value) })
}

func (w *wire) Get(ctx context.Context, key string) (value []byte, err error) {
	err = w.through(ctx, func() (err error) { value, err = w.Client.Get(ctx, key); return err })
	return value, err
}

func (w *wire) Wait(ctx context.Context, keys ...string) error {
	return w.through(ctx, func() error { return w.Client.Wait(ctx, keys...) })
}

func (w *wire) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = w.through(ctx, func() (err error) { n, err = w.Client.Add(ctx, key, delta); return err })
	return n, err
}

func (w *wire) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = w.through(ctx, func() (err error) { value, err = w.Client.CompareAndSet(ctx, key, expected, desired); return err })
	return value, err
}

// port stands for a node's server.
type port struct{ n int }

func (p port) Port() int    { return p.n }
func (p port) Reset()       {}
func (p port) Close() error { return nil }

func (h *hosts) dial(from, to string) (membership.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from != to && (h.cuts[from].Load() || h.cuts[to].Load()) {
		return nil, fmt.Errorf("%s does not reach %s", from, to)
	}
	w := &wire{Client: h.spaces[to].Client()}
	if from != to {
		w.cuts = []*atomic.Bool{h.cuts[from], h.cuts[to]}
	}
	return w, nil
}

// node makes an agent that meets at the store of the node called host.
func (h *hosts) node(name, host string) *agent {
	h.ports++
	n := h.ports
	h.mu.Lock()
	h.spaces[name], h.cuts[name] = memstore.NewSpace(), &atomic.Bool{}
	h.mu.Unlock()
	conn, err := h.dial(name, host)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.start(name, func(c *membership.Config) {
		c.Store, c.Hosts, c.Failover, c.Workers, c.At = conn, name == host, true, port{n}, host+":0"
		c.Dial = func(ctx context.Context, addr string) (membership.Conn, error) {
			to, _, _ := strings.Cut(addr, ":")
			conn, err := h.dial(name, to)
			if err != nil {
				<-ctx.Done() // nobody answers
			}
			return conn, err
		}
	})
}

// power takes a node down: its store is gone.
func (h *hosts) powerOff(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cuts[name].Store(true)
}

func TestHostDies(t *testing.T) {
	for _, how := range []string{"process", "node"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosts(t, 2, 3)
				a := h.node("a", "a")
				first := a.begin(t.Context())
				synctest.Wait()
				b, c := h.node("b", "a"), h.node("c", "a")
				meet(t.Context(), b, c)
				<-first
				died := time.Now()
				if how == "process" {
					h.spaces["a"].Close()
				} else {
					h.powerOff("a")
				}
				for _, x := range []*agent{b, c} {
					v := x.verdict()
					if v.Kind != rendezvous.Reassemble || v.Reason != "StoreLost" || v.Grace == 0 ||
						!strings.Contains(v.Message, "on node a ") {
						t.Errorf("%s: %+v", x.name, v)
					}
				}
				for _, n := range meet(t.Context(), b, c) {
					if n.err != nil || n.round.Number != 1 || n.round.GroupWorldSize != 2 || n.round.HostLost != "a" {
						t.Errorf("%+v, %v", n.round, n.err)
					}
				}
				if took := time.Since(died); took > 10*time.Second {
					t.Errorf("new round after %v", took)
				}
				if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: 1}); err != nil {
					t.Fatal(err)
				}
				c.verdict()
				n := meet(t.Context(), b, c)[0]
				if n.err != nil || n.round.Restarts != 1 || n.round.Replacements != 1 || n.round.HostLost != "" {
					t.Errorf("%+v, %v", n.round, n.err)
				}
			})
		})
	}
}

// TestCutOffHost cuts the host off from the others: they go on, it stops, and it has stopped before they begin.
func TestCutOffHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 1, 4)
		a := h.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		b, c, d := h.node("b", "a"), h.node("c", "a"), h.node("d", "a")
		meet(t.Context(), b, c, d)
		<-first
		h.powerOff("a")
		stopped := make(chan time.Time, 1)
		go func() {
			v := a.verdict()
			end := time.Now().Add(v.Grace)
			if v.Kind == rendezvous.Reassemble { // it may hear of the first lost node before the others
				n := <-a.begin(t.Context())
				if n.err == nil || !strings.Contains(n.err.Error(), "only 1 of 4 nodes can be reached") {
					t.Errorf("the host goes on: %+v, %v", n.round, n.err)
				}
			} else if v.Status != errhint.TryAgain {
				t.Errorf("%+v", v)
			}
			stopped <- end
		}()
		for _, x := range []*agent{b, c, d} {
			x.verdict()
		}
		if number, _ := h.mustMeet(b, c, d); number != 1 {
			t.Errorf("round %d", number)
		}
		began := time.Now()
		if end := <-stopped; !end.Before(began) {
			t.Errorf("the host's workers end at %v, the others begin at %v", end, began)
		}
	})
}

func TestOneOfTwoStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 1, 2)
		a := h.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		b := h.node("b", "a")
		if n := <-b.begin(t.Context()); n.err != nil {
			t.Fatal(n.err)
		}
		<-first
		cut := time.Now()
		h.powerOff("a")
		b.verdict()
		n := <-b.begin(t.Context())
		if errhint.CodeOf(n.err) != errhint.TryAgain ||
			!strings.Contains(n.err.Error(), "of 2 nodes in the last round 2 must find each other") {
			t.Errorf("%v", n.err)
		}
		if took := time.Since(cut); took > 15*time.Second {
			t.Errorf("it stops after %v", took)
		}
		// The host goes on: half of the last round, and the store.
		a.verdict()
		if n := <-a.begin(t.Context()); n.err != nil || n.round.GroupWorldSize != 1 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
	})
}

// TestMinorityStops cuts one of four off that is not the host.
func TestMinorityStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 2, 4)
		a := h.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		b, c, d := h.node("b", "a"), h.node("c", "a"), h.node("d", "a")
		meet(t.Context(), b, c, d)
		<-first
		cut := time.Now()
		h.powerOff("d")
		alone := make(chan time.Time)
		go func() {
			v := d.verdict()
			alone <- time.Now().Add(v.Grace)
			if n := <-d.begin(t.Context()); errhint.CodeOf(n.err) != errhint.TryAgain {
				t.Errorf("%v", n.err)
			}
			alone <- time.Now()
		}()
		for _, x := range []*agent{a, b, c} {
			if v := x.verdict(); v.Reason != "NodeLost" {
				t.Errorf("%+v", v)
			}
		}
		h.mustMeet(a, b, c)
		if took := time.Since(cut); took > 10*time.Second {
			t.Errorf("new round after %v", took)
		}
		if began, ended := time.Since(cut), (<-alone).Sub(cut); ended >= began {
			t.Errorf("the round begins after %v, the workers of the lost node end after %v", began, ended)
		}
		if took := (<-alone).Sub(cut); took > 30*time.Second {
			t.Errorf("d gives up after %v", took)
		}
	})
}

// TestStoreOutage stops a store that outlives its agents for a while, as etcd without a quorum: nobody may go on, and
// afterwards everybody does.
func TestStoreOutage(t *testing.T) {
	for _, outage := range []time.Duration{3 * time.Second, time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 2, 3)
				j.cfg.JoinTimeout = 10 * time.Minute
				var out atomic.Bool
				var agents []*agent
				for i := range 3 {
					agents = append(agents, j.start(fmt.Sprint(i), func(c *membership.Config) {
						c.Store, c.Durable = &wire{Client: j.space.Client(), cuts: []*atomic.Bool{&out}}, true
					}))
				}
				j.mustMeet(agents...)
				out.Store(true)
				time.Sleep(outage)
				if outage < 5*time.Second {
					out.Store(false)
					time.Sleep(time.Minute)
					for _, a := range agents {
						if len(a.Verdict()) > 0 {
							t.Errorf("%s leaves its round: %+v", a.name, <-a.Verdict())
						}
					}
					return
				}
				for _, a := range agents {
					if v := a.verdict(); v.Reason != "StoreLost" || v.Grace == 0 {
						t.Errorf("%+v", v)
					}
				}
				var back []chan next
				for _, a := range agents {
					back = append(back, a.begin(t.Context()))
				}
				time.Sleep(time.Minute)
				out.Store(false)
				for i := range agents {
					n := <-back[i]
					if n.err != nil || n.round.Number != 1 || n.round.GroupWorldSize != 3 || n.round.Restarts != 0 {
						t.Errorf("agent %d: %+v, %v", i, n.round, n.err)
					}
				}
			})
		})
	}
}

// TestHostIsNotCoordinator ends a job whose store is served by another agent than the coordinator: both wait for the
// third, and not for each other.
func TestHostIsNotCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 3, 3)
		a := h.node("a", "a")
		b := h.node("b", "a")
		fb := b.begin(t.Context())
		synctest.Wait() // b is the coordinator
		c := h.node("c", "a")
		meet(t.Context(), a, c)
		<-fb
		c.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed})
		began := time.Now()
		var closed sync.WaitGroup
		for _, x := range []*agent{a, b, c} {
			x.verdict()
			closed.Go(func() {
				if x == c {
					time.Sleep(time.Second)
				}
				x.Close()
			})
		}
		closed.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the last one leaves after %v, the others were to leave after 1s and with it", took)
		}
	})
}

// TestCoordinatorOfTwoDies loses the coordinator of a round of two nodes, which the store is not on: the other one and
// a spare go on at once, because nobody can have more than half elsewhere.
func TestCoordinatorOfTwoDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 2, 4)
		h.cfg.Spares = 1
		a, b := h.node("a", "a"), h.node("b", "a")
		fb := b.begin(t.Context())
		synctest.Wait() // b is the coordinator
		fa := a.begin(t.Context())
		synctest.Wait()
		c := h.node("c", "a")
		fc := c.begin(t.Context())
		for _, f := range []chan next{fa, fb} {
			if n := <-f; n.err != nil || n.round.GroupWorldSize != 2 {
				t.Fatalf("%+v, %v", n.round, n.err)
			}
		}
		died := time.Now()
		h.powerOff("b")
		if v := a.verdict(); v.Kind != rendezvous.Reassemble {
			t.Fatalf("%+v", v)
		}
		fa = a.begin(t.Context())
		for _, f := range []chan next{fa, fc} {
			if n := <-f; n.err != nil || n.round.GroupWorldSize != 2 || n.round.Number != 1 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
		if took := time.Since(died); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestCoordinatorAndAnotherDie leaves one of three nodes, with the store: the two may go on elsewhere, so it stops.
func TestCoordinatorAndAnotherDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 1, 3)
		h.cfg.LastCall = time.Second
		a, b := h.node("a", "a"), h.node("b", "a")
		fb := b.begin(t.Context())
		synctest.Wait() // b is the coordinator
		c := h.node("c", "a")
		meet(t.Context(), a, c)
		<-fb
		died := time.Now()
		h.powerOff("b")
		h.powerOff("c")
		a.verdict()
		n := <-a.begin(t.Context())
		if over, ok := errors.AsType[*rendezvous.OverError](n.err); !ok || over.Verdict.Reason != "QuorumLost" ||
			over.Verdict.Status != errhint.TryAgain {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		if took := time.Since(died); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestHostLeaves stops the host of the store by a signal: the others go on, also where only one is left, because nobody
// has to be feared any more.
func TestHostLeaves(t *testing.T) {
	for _, nodes := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHosts(t, 1, nodes)
				a := h.node("a", "a")
				first := a.begin(t.Context())
				synctest.Wait()
				var rest []*agent
				for i := range nodes - 1 {
					rest = append(rest, h.node(string(rune('b'+i)), "a"))
				}
				meet(t.Context(), rest...)
				<-first
				if _, err := a.Propose(t.Context(),
					rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeStopped", Rank: -1}); err != nil {
					t.Fatal(err)
				}
				var back []chan next
				for _, x := range rest {
					if v := x.verdict(); v.Kind != rendezvous.Reassemble {
						t.Errorf("%+v", v)
					}
					back = append(back, x.begin(t.Context()))
				}
				time.Sleep(20 * time.Second) // its workers take their time
				for i, b := range back {
					if len(b) > 0 {
						t.Errorf("%s begins while the workers of the host may run: %+v", rest[i].name, <-b)
					}
				}
				a.Close()
				h.spaces["a"].Close()
				left := time.Now()
				for i, b := range back {
					n := <-b
					if n.err != nil || n.round.GroupWorldSize != nodes-1 || n.round.Number != 1 {
						t.Errorf("%s: %+v, %v", rest[i].name, n.round, n.err)
					}
				}
				if took := time.Since(left); took > 12*time.Second {
					t.Errorf("new round %v after the host has left", took)
				}
			})
		})
	}
}

// TestHostLeavesFirst has another node propose to leave when the host has done so already: it hears that as the answer,
// and may be in no round any more before its watch has heard it. It votes like the others.
func TestHostLeavesFirst(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts(t, 3, 4)
			a := h.node("a", "a")
			first := a.begin(t.Context())
			synctest.Wait()
			rest := []*agent{h.node("b", "a"), h.node("c", "a"), h.node("d", "a")}
			meet(t.Context(), rest...)
			<-first
			leaves := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeStopped", Rank: -1}
			said, err := a.Propose(t.Context(), leaves)
			if err != nil {
				t.Fatal(err)
			}
			var back []chan next
			for _, x := range rest {
				if heard, err := x.Propose(t.Context(), leaves); err != nil || heard != said {
					t.Fatalf("%s hears %+v: %v", x.name, heard, err)
				}
				back = append(back, x.begin(t.Context()))
			}
			a.Close()
			h.spaces["a"].Close()
			for i, b := range back {
				if n := <-b; n.err != nil || n.round.GroupWorldSize != 3 {
					t.Errorf("%s: %+v, %v", rest[i].name, n.round, n.err)
				}
			}
		})
	}
}

// TestNewSpareFollowsTheStore: a spare has waited for a moment when the host of the store dies. It finds the store where
// that moves, and takes the place of the lost node.
func TestNewSpareFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 3, 3)
		h.cfg.Spares = 1
		a := h.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		b, c := h.node("b", "a"), h.node("c", "a")
		for _, n := range append(meet(t.Context(), b, c), <-first) {
			if n.err != nil {
				t.Fatal(n.err)
			}
		}
		spare := h.node("d", "a").begin(t.Context())
		time.Sleep(3 * time.Second)
		h.powerOff("a")
		for _, x := range []*agent{b, c} {
			x.verdict()
		}
		for _, n := range []chan next{b.begin(t.Context()), c.begin(t.Context()), spare} {
			if n := <-n; n.err != nil || n.round.GroupWorldSize != 3 || n.round.Number != 1 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
	})
}

package membership_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// TestGraceAndCut: a worker on the host's node fails, and the host's other workers have 30 s to end. In that moment the
// host is cut off from the four others, before they hear of the verdict. They elect another host and begin a round: by
// then the lease must have ended that the old host renews at its own store.
func TestGraceAndCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		all := n.firstRound("a b c d e")
		a, rest := all[0], all[1:]
		leases := a.Lease()
		time.Sleep(20 * time.Second)
		n.split("a", "b c d e")
		v, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: 1, Rank: 0, Status: 1})
		t.Log(v, err, <-a.Verdict())
		told := time.Now()
		for _, x := range rest {
			t.Logf("after %v: %s", time.Since(told), x.verdict().Reason)
		}
		time.Sleep(500 * time.Millisecond)
		for _, g := range meet(t.Context(), rest...) {
			if g.err != nil {
				t.Fatal(g.err)
			}
		}
		t.Logf("the others begin another round %v after the verdict", time.Since(told))
		var lease time.Time
		select {
		case lease = <-leases:
		default:
		}
		ended := !lease.IsZero() && lease.Before(time.Now())
		select {
		case v := <-a.Verdict():
			t.Logf("a hears %+v", v)
			ended = ended || v.Grace > 0
		default:
		}
		if !ended {
			t.Errorf("workers of a may run until %v after the verdict (grace), its lease is good until %v after it: two worlds",
				30*time.Second, lease.Sub(told))
		}
		n.end(all...)
	})
}

// TestLeaseOfOneNode: one node trains alone (--nnodes 1:2) at a store that another process serves (muster store, etcd).
// Its agent is stopped (SIGSTOP), the workers are not. Another node comes, takes over the leadership and begins a world
// of its own: by then the guardian of the first must have had a lease that has ended.
func TestLeaseOfOneNode(t *testing.T) {
	for _, durable := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(t, 1, 2)
			j.cfg.Durable = durable
			var stopped atomic.Bool
			still := func(string, string) time.Duration {
				if stopped.Load() {
					return time.Hour
				}
				return 0
			}
			a := j.start("a", func(c *membership.Config) {
				c.Store = &cable{Client: j.space.Client(), before: still}
			})
			if n := <-a.begin(t.Context()); n.err != nil || n.round.GroupWorldSize != 1 {
				t.Fatal(n)
			}
			time.Sleep(10 * time.Second)
			var lease time.Time
			leases := a.Lease()
			take := func() {
				select {
				case lease = <-leases:
				default:
				}
			}
			take()
			stopped.Store(true) // the agent and all its goroutines
			synctest.Wait()
			take()
			b := j.start("b")
			n := <-b.begin(t.Context())
			if n.err != nil {
				t.Fatal(n.err)
			}
			t.Logf("durable %v: b begins round %d of %d at %v; lease of a: %v (nil channel: %v)", durable, n.round.Number,
				n.round.GroupWorldSize, time.Now(), lease, leases == nil)
			if lease.IsZero() || lease.After(time.Now()) {
				t.Errorf("b has begun round %d, and nothing ends the workers of a, whose agent stands still: lease %v",
					n.round.Number, lease)
			}
			stopped.Store(false)
			_, _ = b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1})
		})
	}
}

// TestLeaseAfterVerdict: where the job is decided the workers that still run have their grace or their linger, whatever
// becomes of the store. A host that was told to stop waits for the workers of the others, which were told so, too.
func TestLeaseAfterVerdict(t *testing.T) {
	for _, v := range []rendezvous.Verdict{
		{Kind: rendezvous.Succeed, Rank: -1, Linger: 10 * time.Minute},
		{Kind: rendezvous.Fail, Rank: 0, Status: 9},
		{Kind: rendezvous.Reassemble, Reason: "NodeStopped", Rank: -1},
	} {
		t.Run(string(v.Kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 2)
				n.cfg.CloseTimeout = 30 * time.Second
				all := n.firstRound("a b")
				a, b := all[0], all[1]
				leases, lease := b.Lease(), time.Time{}
				take := func() {
					synctest.Wait()
					select {
					case lease = <-leases:
					default:
					}
				}
				time.Sleep(10 * time.Second)
				if take(); !lease.After(time.Now()) {
					t.Errorf("lease %v at %v", lease, time.Now())
				}
				if _, err := a.Propose(t.Context(), v); err != nil {
					t.Fatal(err)
				}
				b.verdict()
				began := time.Now()
				left := make(chan struct{})
				go func() {
					a.Close()
					n.spacesOf("a").Close()
					close(left)
				}()
				for range 20 { // b's workers end
					time.Sleep(time.Second)
					take()
					if !lease.IsZero() && !lease.After(time.Now()) {
						t.Fatalf("workers of b are killed %v after the verdict", time.Since(began))
					}
				}
				b.Close()
				<-left
				if took := time.Since(began); took > 21*time.Second {
					t.Errorf("a leaves %v after the verdict, %v after b", took, took-20*time.Second)
				}
			})
		})
	}
}

// TestMixedFence: an agent of torchrun hosts the store, and a node of ours is cut off from it. The others go on in a
// round that follows torchrun's protocol, whose meeting takes no time here: by then the workers of that node must have
// ended.
func TestMixedFence(t *testing.T) {
	for _, victim := range []string{"a", "b"} { // a is the coordinator
		t.Run(victim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 3, 4)
				torchrun := &bridge{join: make(chan membership.Joined)}
				links, agents, firsts := map[string]*link{}, map[string]*agent{}, map[string]chan next{}
				for _, name := range []string{"a", "b", "c"} {
					links[name] = &link{}
					agents[name] = j.start(name, func(c *membership.Config) {
						c.Store = &cable{Client: j.space.Client(), l: links[name]}
						c.Bridge = func(membership.Conn) (membership.Bridge, error) { return torchrun, nil }
					})
					firsts[name] = agents[name].begin(t.Context())
					synctest.Wait()
				}
				time.Sleep(5 * time.Second)
				meeting := membership.Joined{
					Size: 4, World: 8, Others: 1, MasterAddr: "t", MasterPort: 1, AgentStore: true,
					Names: []string{"t", "a", "b", "c"},
				}
				torchrun.join <- meeting
				for name := range agents {
					if n := <-firsts[name]; n.err != nil {
						t.Fatal(n.err)
					}
				}
				time.Sleep(10 * time.Second)
				links[victim].cut.Store(true)
				cut := agents[victim]
				var ended time.Time // of its workers, which do not end by themselves
				heard := make(chan struct{})
				go func() {
					defer close(heard)
					lease := time.Now().Add(time.Hour)
					for {
						select {
						case lease = <-cut.Lease():
						case v := <-cut.Verdict():
							if ended = lease; v.Grace > 0 && time.Now().Add(v.Grace).Before(lease) {
								ended = time.Now().Add(v.Grace)
							}
							return
						}
					}
				}()
				var again []chan next
				for name, a := range agents {
					if name != victim {
						if v := a.verdict(); v.Kind != rendezvous.Reassemble {
							t.Errorf("%s hears %+v", name, v)
						}
						again = append(again, a.begin(t.Context()))
					}
				}
				meeting.Size, meeting.World = 3, 6
				torchrun.join <- meeting
				for _, c := range again {
					if n := <-c; n.err != nil {
						t.Fatal(n.err)
					}
				}
				began := time.Now()
				<-heard
				if ended.After(began) {
					t.Errorf("workers of %s live on into the next round for %v", victim, ended.Sub(began))
				}
				t.Logf("workers of %s have ended %v before the next round", victim, began.Sub(ended))
				j.space.Close()
			})
		})
	}
}

// TestLeaseOfNextRound: the host is cut off from both others for just so long that it takes them for lost, and they
// come back to it. What it said of the last round is no lease for the workers of the next one.
func TestLeaseOfNextRound(t *testing.T) {
	for ms := 4000; ms <= 5000; ms += 50 {
		if thin(ms / 50) {
			continue
		}
		t.Run(fmt.Sprint(ms), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 3)
				var lives sync.WaitGroup
				var all []*agent
				for _, name := range []string{"a", "b", "c"} {
					all = append(all, n.node(name, "a"))
					n.live(all[len(all)-1], &lives)
					synctest.Wait()
				}
				time.Sleep(20 * time.Second)
				n.split("a", "b c")
				time.Sleep(time.Duration(ms) * time.Millisecond)
				n.heal([]string{"a", "b", "c"})
				time.Sleep(40 * time.Second)
				n.overlaps()
				n.goOn(2)
				n.mu.Lock()
				for _, s := range n.lapses {
					if s.round.Number > 0 {
						t.Errorf("%s lost its workers %v after round %d began, while everybody was there", s.who, s.end.Sub(s.start),
							s.round.Number)
					}
				}
				n.mu.Unlock()
				n.end(all...)
				lives.Wait()
			})
		})
	}
}

// TestDecidedAndCut: a verdict that ends the job is heard by b alone, which is cut off in that moment. The others elect
// a host and go on.
func TestDecidedAndCut(t *testing.T) {
	for _, v := range []rendezvous.Verdict{
		{Kind: rendezvous.Fail, Rank: 0, Status: 1},
		{Kind: rendezvous.Succeed, Rank: -1, Linger: 10 * time.Minute},
	} {
		t.Run(string(v.Kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 5)
				all := n.firstRound("a b c d e")
				a, b, others := all[0], all[1], all[2:]
				time.Sleep(20 * time.Second)
				n.split("a b", "c d e")
				if _, err := a.Propose(t.Context(), v); err != nil {
					t.Fatal(err)
				}
				t.Logf("b hears %+v", b.verdict())
				n.split("a", "b")
				told := time.Now()
				var lease time.Time
				var more []rendezvous.Verdict
				leases, done := b.Lease(), make(chan struct{})
				go func() {
					for {
						select {
						case lease = <-leases:
						case v := <-b.Verdict():
							more = append(more, v)
						case <-done:
							return
						}
					}
				}()
				for _, x := range others {
					t.Logf("after %v: %s", time.Since(told), x.verdict().Reason)
				}
				time.Sleep(500 * time.Millisecond)
				for _, g := range meet(t.Context(), others...) {
					if g.err != nil {
						t.Fatal(g.err)
					}
				}
				close(done)
				synctest.Wait()
				if lease.IsZero() || lease.After(time.Now()) {
					t.Errorf("%v after the verdict the others begin a round; the lease of b is %v, and it has heard no more than %+v: "+
						"two worlds for as long as its workers take", time.Since(told), lease, more)
				}
				n.end(all...)
			})
		})
	}
}

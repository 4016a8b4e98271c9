package membership_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// TestRestartedHost: the nodes of the host and of another agent come back at once (a supervisor restarts them), while
// the three others move the store: both make a world.
func TestRestartedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		var lives sync.WaitGroup
		all := n.come("a b c d e", n.live, &lives)
		time.Sleep(20 * time.Second)
		n.spacesOf("a").Close() // a and e are killed
		all[4].die()
		n.spacesOf("e").Close()
		time.Sleep(time.Second)
		a2 := n.reborn() // nobody else serves the endpoint
		e2 := n.node("e2", "a2")
		n.live(a2, &lives)
		n.live(e2, &lives)
		time.Sleep(40 * time.Second)
		n.worlds()
		n.end(append(all, a2, e2)...)
		lives.Wait()
	})
}

// TestSplitBrainAfterMove: the store has moved to b, and two newcomers make the next round one of six. Three of the old
// nodes are cut off as it is assigned: to themselves they are most of the last round, to b they are half of the new
// one.
func TestSplitBrainAfterMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 6)
		var lives sync.WaitGroup
		all := n.come("a b c d e", n.live, &lives)
		time.Sleep(20 * time.Second)
		n.mu.Lock()
		for _, s := range n.spans {
			t.Logf("%s has rank %d of %d", s.who, s.round.GroupRank, s.round.GroupWorldSize)
		}
		n.mu.Unlock()
		n.split("a", "b c d e f g")
		time.Sleep(7 * time.Second)
		for _, name := range []string{"f", "g"} {
			x := n.node(name, "b", func(c *membership.Config) { c.Hosts = false })
			all = append(all, x)
			n.live(x, &lives)
		}
		time.Sleep(time.Second)
		t.Logf("%v cut", time.Now().Format("05.000"))
		n.split("c d e", "b f g")
		time.Sleep(50 * time.Second)
		n.worlds()
		n.end(all...)
		lives.Wait()
	})
}

// TestOneWayCut: answers of the host to most nodes are lost, their requests arrive: it sees one heartbeat more than
// they count. A node of the minority loses the host just before that one gives up.
func TestOneWayCut(t *testing.T) {
	for i, cut := range []int{4100, 4200, 4300, 4400, 4500, 4600} {
		if thin(i) {
			continue
		}
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 5)
				var lives sync.WaitGroup
				all := n.come("a b c d", n.live, &lives)
				// The heartbeats of e come just before it is cut off.
				time.Sleep(time.Duration(cut%1000)*time.Millisecond - 10*time.Millisecond)
				all = append(all, n.come("e", n.live, &lives)...)
				time.Sleep(20*time.Second - (time.Duration(cut%1000)*time.Millisecond - 10*time.Millisecond) - 10*time.Millisecond)
				for _, x := range []string{"b", "c", "d"} {
					n.link("a", x).deaf.Store(true) // their next heartbeat arrives 10 ms later
				}
				n.split("e", "b c d")
				time.Sleep(10*time.Millisecond + time.Duration(cut)*time.Millisecond)
				n.split("a", "e b c d")
				time.Sleep(50 * time.Second)
				n.overlaps()
				n.end(all...)
				lives.Wait()
			})
		})
	}
}

// TestHostDiesWhileRestarting: workers fail, and the host of the store dies before the next round: most nodes are left.
func TestHostDiesWhileRestarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		all := n.firstRound("a b c d e")
		a, rest := all[0], all[1:]
		a.Propose(t.Context(),
			rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: 1, Rank: 0, Status: 1}) // a's worker was killed for memory
		for _, x := range rest {
			x.verdict()
		}
		n.split("a", "b c d e") // and now a itself
		for i, g := range meet(t.Context(), rest...) {
			if errhint.CodeOf(g.err) != errhint.TryAgain { // nobody knows whether a round has begun there
				t.Errorf("agent %d: %v", i, g.err)
			}
		}
	})
}

// TestElectedAlone: the other voter dies after the vote. Whoever was elected has no majority, and is to stop.
func TestElectedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 1, 3)
		n.cfg.JoinTimeout = 10 * time.Minute
		all := n.firstRound("a b c")
		b, c := all[1], all[2]
		n.split("a", "b c")
		b.verdict()
		c.verdict()
		fb, fc := b.begin(t.Context()), c.begin(t.Context())
		time.Sleep(time.Second)
		n.split("c", "b")
		began := time.Now()
		for name, f := range map[string]chan next{"b": fb, "c": fc} {
			g := <-f
			t.Logf("%s after %v: %+v %v", name, time.Since(began), g.round, g.err)
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("%s, of 1 of 3 nodes, stops after %v", name, took)
			}
		}
	})
}

// TestHostPowerOffInTime: how long a round takes after the host has lost its power.
func TestHostPowerOffInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 3)
		all := n.firstRound("a b c")
		b, c := all[1], all[2]
		n.split("a", "b c")
		cut := time.Now()
		b.verdict()
		c.verdict()
		for _, g := range meet(t.Context(), b, c) {
			if g.err != nil {
				t.Fatal(g.err)
			}
		}
		if took := time.Since(cut); took > 10*time.Second {
			t.Errorf("new round %v after the host's death", took)
		}
	})
}

// TestRestartedHostAndMinority: the host is killed and comes back empty at its address, at the same moment the network
// is cut: one of the four others is on its side, and brings it the news of a round of five. Three of five are on the
// other.
func TestRestartedHostAndMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		a := n.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		var lives sync.WaitGroup
		all := n.come("b c d e", n.live, &lives)
		<-first
		time.Sleep(20 * time.Second)
		old := n.spacesOf("a")
		n.mu.Lock()
		n.spaces["a"] = memstore.NewSpace()
		n.mu.Unlock()
		n.split("a a2 b", "c d e")
		old.Close() // a is killed
		a2 := n.node("a2", "a", func(c *membership.Config) { c.Hosts = true })
		n.live(a2, &lives)
		time.Sleep(50 * time.Second)
		n.worlds()
		n.end(append(all, a, a2)...)
		lives.Wait()
	})
}

// TestCutOfTheHostHeals: the host is cut off from everybody, for a bit longer than a node may be silent. Either it goes
// on where it was, or the others do.
func TestCutOfTheHostHeals(t *testing.T) {
	for ms := 3500; ms <= 9000; ms += 250 {
		if thin(ms / 250) {
			continue
		}
		t.Run(fmt.Sprint(ms), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 5)
				var lives sync.WaitGroup
				all := n.come("a", n.live, &lives)
				for _, name := range []string{"b", "c", "d", "e"} {
					time.Sleep(130 * time.Millisecond)
					all = append(all, n.come(name, n.live, &lives)...)
				}
				time.Sleep(20 * time.Second)
				n.split("a", "b c d e")
				time.Sleep(time.Duration(ms) * time.Millisecond)
				n.mend("a", "b c d e")
				time.Sleep(50 * time.Second)
				n.overlaps()
				n.goOn(3)
				n.end(all...)
				lives.Wait()
			})
		})
	}
}

// TestHostStandsStill: the host of the store stands still (SIGSTOP, a paused machine) for a bit longer than a node may
// be silent, and goes on. Its store is as it was.
func TestHostStandsStill(t *testing.T) {
	for _, nodes := range []string{"b", "b c"} {
		for i, ms := range []int{3000, 3500, 4100, 4500, 6000} {
			if thin(i) {
				continue
			}
			t.Run(fmt.Sprint(nodes, " ", ms), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, 1, 1+len(strings.Fields(nodes)))
					a := n.node("a", "a", func(c *membership.Config) {
						k := c.Store.(*cable)
						k.l = n.link("a", "a")
					})
					var lives sync.WaitGroup
					n.live(a, &lives)
					synctest.Wait()
					all := append(n.come(nodes, n.live, &lives), a)
					time.Sleep(20*time.Second + 400*time.Millisecond)
					n.split("a", "a "+nodes)
					time.Sleep(time.Duration(ms) * time.Millisecond)
					n.mend("a", "a "+nodes)
					time.Sleep(40 * time.Second)
					n.overlaps()
					n.goOn(1)
					n.end(all...)
					lives.Wait()
				})
			})
		}
	}
}

// TestElectedAndLeft: most of the last round elect another host, and one of them finds the old one again before it has
// heard that. Nobody is left behind at a store that most of them never come to.
func TestElectedAndLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 3)
		var lives sync.WaitGroup
		all := n.come("a b", n.live, &lives)
		voted := false
		c := n.node("c", "a", func(cfg *membership.Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, addr string) (membership.Conn, error) {
				conn, err := dial(ctx, addr)
				if err != nil || addr[0] != 'b' {
					return conn, err
				}
				conn.(*cable).before = func(op, key string) time.Duration {
					switch {
					case op == "cas" && strings.Contains(key, "/vote/"):
						voted = true
						n.mend("a", "b c")
					case op == "get" && strings.HasSuffix(key, "/elected"):
						return time.Second
					}
					return 0
				}
				return conn, nil
			}
		})
		n.live(c, &lives)
		time.Sleep(20 * time.Second)
		n.split("a", "b c")
		time.Sleep(40 * time.Second)
		n.overlaps()
		n.mu.Lock()
		if len(n.errs) > 0 || !voted {
			t.Errorf("c has voted: %v; ended: %v", voted, n.errs)
		}
		for _, who := range []string{"a", "b", "c"} {
			last := rendezvous.Round{}
			for _, s := range n.spans {
				if s.who == who {
					last = s.round
				}
			}
			if last.GroupWorldSize != 3 || last.Number == 0 {
				t.Errorf("%s is in %+v at last, want a later round of 3", who, last)
			}
		}
		n.mu.Unlock()
		n.end(append(all, c)...)
		lives.Wait()
	})
}

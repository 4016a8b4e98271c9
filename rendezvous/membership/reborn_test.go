package membership_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// mortal is live for an agent that ends without a word when its own store is closed: its process is killed.
func (n *network) mortal(a *agent, done *sync.WaitGroup) {
	own := n.spacesOf(a.name)
	done.Go(func() {
		for {
			r := <-a.begin(n.t.Context())
			if r.err != nil {
				n.t.Logf("%s ends: %v", a.name, r.err)
				break
			}
			n.workers(a, r.round)
			if _, err := own.Client().Add(n.t.Context(), "probe", 0); err != nil {
				break
			}
		}
		a.Close()
		own.Close()
	})
}

// TestSecondHostDies: the host a dies, b is elected. a is restarted by its supervisor at its old address, is told that
// the job is at b, and joins there. Then b dies, too: c, d, e (and a2) are most of the round, and must go on.
func TestSecondHostDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		var lives sync.WaitGroup
		all := append(n.come("a b", n.mortal, &lives), n.come("c d e", n.live, &lives)...)
		time.Sleep(20 * time.Second)
		t.Logf("%v a dies", time.Now().Format("05.000"))
		n.spacesOf("a").Close()
		time.Sleep(20 * time.Second)
		t.Logf("%v a2 comes", time.Now().Format("05.000"))
		a2 := n.reborn()
		n.live(a2, &lives)
		time.Sleep(30 * time.Second)
		n.worlds()
		t.Logf("%v b dies", time.Now().Format("05.000"))
		n.spacesOf("b").Close()
		time.Sleep(3 * time.Minute)
		n.worlds()
		n.overlaps()
		n.goOn(3)
		n.end(append(all, a2)...)
		lives.Wait()
	})
}

// TestHostOfFixedRanksDies: ranks are those that the nodes were started with. The host, of rank 0, dies; another one is
// elected, and the node that takes the place of the first is let in: each node has its rank in the next round, too.
func TestHostOfFixedRanksDies(t *testing.T) {
	for i, size := range []int{4, 3, 35} { // more than have a place among those that the store may move to
		if thin(i) {
			continue
		}
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, size, size)
				fixed := func(rank int) func(*membership.Config) {
					return func(c *membership.Config) { c.Fixed, c.NodeRank = true, rank }
				}
				var lives sync.WaitGroup
				a := n.node("a", "a", fixed(0))
				n.mortal(a, &lives)
				synctest.Wait()
				all := []*agent{a}
				for rank := 1; rank < size; rank++ {
					x := n.node("n"+strconv.Itoa(rank), "a", fixed(rank))
					all = append(all, x)
					n.live(x, &lives)
				}
				time.Sleep(20 * time.Second)
				n.goOn(size)
				n.spacesOf("a").Close()
				time.Sleep(time.Second)
				a2 := n.node("a2", "a2", fixed(0))
				n.mu.Lock()
				n.spaces["a"] = n.spaces["a2"]
				n.mu.Unlock()
				n.live(a2, &lives)
				time.Sleep(time.Minute)
				n.worlds()
				n.overlaps()
				n.goOn(size)
				n.mu.Lock()
				for _, s := range n.spans {
					want := map[string]int{"a": 0, "a2": 0}[s.who]
					if number, ok := strings.CutPrefix(s.who, "n"); ok {
						want, _ = strconv.Atoi(number)
					}
					if s.round.GroupRank != want {
						t.Errorf("%s has rank %d in round %d", s.who, s.round.GroupRank, s.round.Number)
					}
				}
				n.mu.Unlock()
				n.end(append(all, a2)...)
				lives.Wait()
			})
		})
	}
}

// TestOldHostJoinsThenSecondDies: the host a is cut off from b, c, d, e, who elect b and begin. a heals in time to hear
// that the job is at b and goes there. Its store is still served, with the word "elsewhere: b" and the key "host". Then
// b dies: c, d, e and a are most of it.
func TestOldHostJoinsThenSecondDies(t *testing.T) {
	for i, ms := range []int{10000, 10500, 11000, 11500, 12000} {
		if thin(i) {
			continue
		}
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 5)
				var lives sync.WaitGroup
				all := n.come("a", n.live, &lives)
				all = append(all, n.come("b", n.mortal, &lives)...)
				all = append(all, n.come("c d e", n.live, &lives)...)
				time.Sleep(20 * time.Second)
				n.split("a", "b c d e")
				time.Sleep(time.Duration(ms) * time.Millisecond)
				n.mend("a", "b c d e")
				time.Sleep(30 * time.Second)
				n.worlds()
				t.Logf("b dies; ended so far: %v", n.errs)
				n.spacesOf("b").Close()
				time.Sleep(3 * time.Minute)
				n.worlds()
				n.overlaps()
				n.goOn(3)
				n.end(all...)
				lives.Wait()
			})
		})
	}
}

// TestRebornHostAndOneCutOff: b is cut off from everybody, or its agent stands still. Just then the host is killed, and
// its supervisor starts it again at once. c, d and e find the store again before they have elected another one, and
// begin with a2, as most of the last round, without waiting until b has noticed that nobody hears it.
func TestRebornHostAndOneCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 3, 5) // the default last call, 3 s
		var lives sync.WaitGroup
		all := append(n.come("a", n.mortal, &lives), n.come("b c d e", n.live, &lives)...)
		time.Sleep(20*time.Second + 10*time.Millisecond)
		n.split("b", "a a2 c d e")
		time.Sleep(100 * time.Millisecond)
		n.spacesOf("a").Close()
		time.Sleep(500 * time.Millisecond)
		a2 := n.reborn()
		n.live(a2, &lives)
		time.Sleep(30 * time.Second)
		n.overlaps()
		n.end(append(all, a2)...)
		lives.Wait()
	})
}

// TestChaosReborn is TestChaos with workers that fail now and then, and hosts that are killed, and come back.
func TestChaosReborn(t *testing.T) {
	seeds, quiet := chaosSeeds(1166, 2129)
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(seed), 99))
				n := newNetwork(t, 3, 5)
				n.cfg.LastCall = time.Second
				if quiet {
					n.cfg.Log = zerolog.Nop()
				}
				var lives sync.WaitGroup
				names := []string{"a", "b", "c", "d", "e"}
				var all []*agent
				for _, name := range names {
					x := n.node(name, "a")
					all = append(all, x)
					n.mortal(x, &lives)
					synctest.Wait()
					time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				reborn := 0
				for range 4 + rnd.IntN(6) {
					switch what := rnd.IntN(6); {
					case what < 3:
						n.partition(rnd, names)
					case what == 3:
						n.heal(names)
					case what == 4 && reborn == 0:
						t.Logf("%v a is killed", time.Now().Format("05.000"))
						n.spacesOf("a").Close()
						reborn = 1
					case reborn == 1:
						reborn = 2
						a2 := n.reborn()
						names = append(names, "a2")
						all = append(all, a2)
						n.live(a2, &lives)
						t.Logf("%v a2 comes", time.Now().Format("05.000"))
					}
					synctest.Wait()
					time.Sleep(time.Duration(rnd.IntN(9000)) * time.Millisecond)
				}
				time.Sleep(30 * time.Second)
				n.overlaps()
				for _, x := range all {
					n.spacesOf(x.name).Close()
				}
				n.end(all...)
				n.allEnd(&lives)
			})
		})
	}
}

// TestRebornHostWhileElected: the host a of three dies, and its supervisor starts it again, sooner or later. All three
// go on: where the others have elected b already, a2 is told so; where c has voted for b and then found that a's
// address is served again, b gives its store up, and its vote counts at a2's.
func TestRebornHostWhileElected(t *testing.T) {
	afters, delays, part := []time.Duration{0}, []time.Duration{0, 30 * time.Millisecond}, time.Duration(1)
	if testutil.Soak() {
		delays, part = append(delays, time.Millisecond, 200*time.Millisecond), 6
	}
	for d := time.Millisecond; d < 20*time.Second; d += d/part + time.Millisecond {
		afters = append(afters, d)
	}
	for i := range 2 * len(afters) {
		after, gone := afters[i/2], i%2 == 1
		for j := range 2 * len(delays) {
			if thin(i + j) {
				continue
			}
			delay, least := delays[j/2], 3-j%2
			t.Run(fmt.Sprint(gone, after, delay, least), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, least, 3)
					n.cfg.Gone = func(context.Context, string) bool { return gone }
					var lives sync.WaitGroup
					all := append(n.come("a", n.mortal, &lives), n.come("b c", n.live, &lives)...)
					time.Sleep(20 * time.Second)
					n.link("b", "c").delay.Store(int64(delay))
					n.spacesOf("a").Close()
					time.Sleep(after)
					a2 := n.reborn()
					n.live(a2, &lives)
					time.Sleep(time.Minute)
					n.worlds()
					n.overlaps()
					n.goOn(3)
					n.end(append(all, a2)...)
					lives.Wait()
				})
			})
		}
	}
}

// TestRebornHostIsALoss: the host of the store is killed, and started again before the others have found another one.
// That is the loss of a node, which uses up a restart and ends the job where none is left, whoever of them is the next
// coordinator.
func TestRebornHostIsALoss(t *testing.T) {
	limits := []struct {
		set           func(*membership.Config)
		losses        int // that the job survives
		reason, words string
	}{
		{func(c *membership.Config) { c.ReplaceLimit = 0 }, 0, "RestartLimitReached", "no restart is left"},
		{func(c *membership.Config) { c.ReplaceLimit = 1 }, 1, "RestartLimitReached", "restart limit of 1 lost nodes"},
		{func(c *membership.Config) { c.BackoffLimit = 1 }, 1, "BackoffLimitReached", "the backoff limit of 1"},
		{func(c *membership.Config) { c.RankLimit = 1 }, 1, "RestartLimitReached", "the 2nd loss of group rank 0"},
		{func(c *membership.Config) { c.LossLimit = 1 }, 1, "RestartLimitReached", "1 of 1 used"},
	}
	for _, limit := range limits {
		for i := range 4 {
			t.Run(fmt.Sprint(limit.words, "/", i), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, 2, 2)
					limit.set(&n.cfg)
					var change []func(*membership.Config)
					if i%2 == 1 {
						change = append(change, late) // another agent is the coordinator
					}
					if i/2 == 1 {
						n.cfg.Token = jobToken
					}
					b := n.firstRound("a b")[1]
					for loss := 1; loss <= limit.losses+1; loss++ {
						n.spacesOf("a").Close()
						b.verdict()
						second := b.begin(t.Context())
						time.Sleep(300 * time.Millisecond)
						a := n.rebornAs("a"+strconv.Itoa(loss+1), change...)
						for _, got := range []next{<-a.begin(t.Context()), <-second} {
							if loss <= limit.losses {
								if got.err != nil || got.round.Replacements != loss || got.round.GroupWorldSize != 2 {
									t.Fatalf("loss %d: %+v, %v", loss, got.round, got.err)
								}
								continue
							}
							over, is := errors.AsType[*rendezvous.OverError](got.err)
							if !is {
								t.Fatalf("loss %d: %+v, %v", loss, got.round, got.err)
							}
							if v := over.Verdict; v.Reason != limit.reason || v.Status != errhint.TryAgain ||
								!strings.Contains(v.Message, "node "+a.name) || !strings.Contains(v.Message, limit.words) {
								t.Errorf("loss %d: %+v", loss, v)
							}
						}
					}
				})
			})
		}
	}
}

// TestRebornHostOfThreeIsALoss: so it is where the others cannot elect another host before. Each loss counts once,
// whether the store moves or its host is started again.
func TestRebornHostOfThreeIsALoss(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprint(moves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 3, 3)
				n.cfg.RankLimit = 2
				rest := n.firstRound("a b c")[1:]
				if !moves {
					n.split("b", "c")
				}
				meeting := []chan next{}
				n.spacesOf("a").Close()
				for _, x := range rest {
					x.verdict()
					meeting = append(meeting, x.begin(t.Context()))
				}
				time.Sleep(300 * time.Millisecond)
				a := n.reborn()
				for _, m := range append(meeting, a.begin(t.Context())) {
					if got := <-m; got.err != nil || got.round.Replacements != 1 || got.round.GroupWorldSize != 3 {
						t.Errorf("%+v, %v", got.round, got.err)
					}
				}
			})
		})
	}
}

// TestHostBackIsNoLoss: the connection of a node to the store breaks, and it finds the same host again.
func TestHostBackIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 2)
		n.cfg.ReplaceLimit, n.cfg.BackoffLimit = 0, 0
		a := n.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		var way membership.Conn
		b := n.node("b", "a", func(c *membership.Config) {
			way = c.Store
			dial := c.Dial
			c.Dial = func(ctx context.Context, addr string) (conn membership.Conn, err error) {
				if conn, err = dial(ctx, addr); err == nil {
					way = conn
				}
				return conn, err
			}
		})
		meet(t.Context(), b)
		<-first
		for range 3 {
			_ = way.Close()
			b.verdict()
			second := b.begin(t.Context())
			a.verdict()
			for _, got := range []next{<-a.begin(t.Context()), <-second} {
				if got.err != nil || got.round.GroupWorldSize != 2 || got.round.Replacements != 0 {
					t.Fatalf("%+v, %v", got.round, got.err)
				}
			}
		}
	})
}

// TestForgedLoss: somebody who reaches the store says in a ticket that the host of his last round is lost. Where the job
// has a token, and he has not, nobody believes it.
func TestForgedLoss(t *testing.T) {
	for _, token := range [][]byte{nil, jobToken} {
		t.Run(string(token), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 2)
				n.cfg.ReplaceLimit, n.cfg.Token = 0, token
				a := n.node("a", "a")
				first := a.begin(t.Context())
				synctest.Wait() // a is the coordinator
				n.space = n.spacesOf("a")
				forger, tickets := n.space.Client(), n.leadership(0)
				body := []byte(`{"agent":"theforger","node":"x","addr":"x","workers":1,"node_rank":-1,"min":2,"max":2,"round":5,"size":2,` +
					`"host":"anotheragent"}`)
				for _, signed := range []bool{false, true} {
					number, err := forger.Add(t.Context(), tickets+"tickets", 1)
					key, value := tickets+"join/"+strconv.FormatInt(number, 10), body
					if signed {
						value = membership.Seal("job7", []byte("another token"), "theforger", key, body)
					}
					if err == nil {
						err = forger.Set(t.Context(), key, value)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				second := n.node("b", "a").begin(t.Context())
				for _, got := range []next{<-first, <-second} {
					if _, over := errors.AsType[*rendezvous.OverError](got.err); over != (token == nil) ||
						token != nil && (got.err != nil || got.round.GroupWorldSize != 2 || got.round.Replacements != 0) {
						t.Errorf("%+v, %v", got.round, got.err)
					}
				}
			})
		})
	}
}

package membership_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// threeAt is a job of one to three nodes at a store that none of them serves. a is the coordinator. Who stands between
// an agent and the store stands in middles, by the agent's name.
func threeAt(t *testing.T, middles map[string]*middle) (j *job, a, b, c *agent) {
	j = newJob(t, 1, 3)
	j.cfg.Token = jobToken
	var agents []*agent
	var nexts []chan next
	for _, name := range []string{"a", "b", "c"} {
		x := j.start(name, func(c *membership.Config) {
			if m := middles[name]; m != nil {
				m.Client = j.space.Client()
				c.Store = m
			}
		})
		agents, nexts = append(agents, x), append(nexts, x.begin(t.Context()))
		synctest.Wait()
	}
	for _, n := range nexts {
		if n := <-n; n.err != nil || n.round.GroupWorldSize != 3 {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
	}
	time.Sleep(10 * time.Second)
	return j, agents[0], agents[1], agents[2]
}

// TestGraceWhereCoordinatorLeaves: the node of the coordinator is told to stop, and leaves. The workers of the others
// have their grace, and whoever takes the leadership waits for them: whether it takes that at once, or is busy with
// workers of its own.
func TestGraceWhereCoordinatorLeaves(t *testing.T) {
	for name, busy := range map[string]time.Duration{
		"the leadership is taken at once": 100 * time.Millisecond,
		"nobody takes the leadership":     15 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, a, b, c := threeAt(t, nil)
				lease := leaseOf(c)
				if _, err := a.Propose(t.Context(), stops); err != nil {
					t.Fatal(err)
				}
				b.verdict()
				c.verdict()
				a.Close()
				first := make(chan next, 1)
				go func() {
					time.Sleep(busy) // its own workers end
					first <- <-b.begin(t.Context())
				}()
				for range 20 { // the workers of c end
					time.Sleep(time.Second)
					if until := lease(); !until.After(time.Now()) {
						t.Fatalf("the workers of c are killed: their lease has ended %v ago", time.Since(until))
					}
					select {
					case n := <-first:
						t.Fatalf("b begins without c, whose workers are ending: %+v, %v", n.round, n.err)
					default:
					}
				}
				for _, n := range []chan next{first, c.begin(t.Context())} {
					if n := <-n; n.err != nil || n.round.GroupWorldSize != 2 {
						t.Errorf("%+v, %v", n.round, n.err)
					}
				}
			})
		})
	}
}

// stops is what an agent proposes that was told to stop.
var stops = rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeStopped", Rank: -1}

// TestHostLeavesIsNoLoss: the host of the store is told to stop. The others go on where no restart is left, too, with
// another host or with the same one, started anew.
func TestHostLeavesIsNoLoss(t *testing.T) {
	for _, names := range []string{"a b", "a b c"} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprint(names, back), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					size := len(strings.Fields(names))
					n := newNetwork(t, size-1, size)
					if n.cfg.ReplaceLimit = 0; back {
						n.cfg.Min = size
					}
					all := n.firstRound(names)
					if _, err := all[0].Propose(t.Context(), stops); err != nil {
						t.Fatal(err)
					}
					var meeting []chan next
					for _, x := range all[1:] {
						x.verdict()
						meeting = append(meeting, x.begin(t.Context()))
					}
					time.Sleep(time.Second)
					all[0].Close()
					n.spacesOf("a").Close()
					if time.Sleep(300 * time.Millisecond); back {
						meeting = append(meeting, n.reborn().begin(t.Context()))
					}
					for _, m := range meeting {
						if got := <-m; got.err != nil || got.round.GroupWorldSize != len(meeting) || got.round.Replacements != 0 {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					}
				})
			})
		}
	}
}

// TestCoordinatorLeavesIsNoLoss: the node of the coordinator leaves, at a store that no node serves. That uses up no
// restart, whether it has said before that it stops or not.
func TestCoordinatorLeavesIsNoLoss(t *testing.T) {
	for _, says := range []bool{true, false} {
		for _, busy := range []time.Duration{0, 3 * time.Second} {
			t.Run(fmt.Sprint(says, busy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := newJob(t, 1, 2)
					j.cfg.ReplaceLimit, j.cfg.Durable = 0, true
					j.mustMeetLater(t, func(a, b *agent) {
						if says {
							if _, err := a.Propose(t.Context(), stops); err != nil {
								t.Fatal(err)
							}
						}
						a.Close()
						if v := b.verdict(); v.Kind != rendezvous.Reassemble {
							t.Fatalf("%+v", v)
						}
						time.Sleep(busy) // its workers end
						if got := <-b.begin(t.Context()); got.err != nil || got.round.Replacements != 0 {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					})
				})
			})
		}
	}
}

// TestCoordinatorBackIsALoss: the node of the coordinator is killed, and started again at once. It takes the leadership,
// since the workers of the other node are still ending, and counts the loss, though it knows nothing of the job.
func TestCoordinatorBackIsALoss(t *testing.T) {
	for _, token := range [][]byte{nil, jobToken} {
		for _, busy := range []time.Duration{0, 3 * time.Second} {
			t.Run(fmt.Sprint(string(token), busy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := newJob(t, 2, 2)
					j.cfg.ReplaceLimit, j.cfg.RankLimit, j.cfg.Durable, j.cfg.Token = 2, 2, true, token
					j.mustMeetLater(t, func(a, b *agent) {
						for loss := 1; ; loss++ {
							a.die()
							time.Sleep(500 * time.Millisecond)
							a = j.start("a" + strconv.Itoa(loss+1))
							first := a.begin(t.Context())
							if v := b.verdict(); (v.Kind == rendezvous.Fail) != (loss > 2) {
								t.Fatalf("loss %d: %+v", loss, v)
							}
							if loss > 2 {
								return
							}
							time.Sleep(busy)
							for _, got := range []next{<-b.begin(t.Context()), <-first} {
								if got.err != nil || got.round.Replacements != loss {
									t.Fatalf("loss %d: %+v, %v", loss, got.round, got.err)
								}
							}
						}
					})
				})
			})
		}
	}
}

// TestTwoCoordinators: the workers of a round end, for which they have time, and b does not hear the coordinator's
// heartbeats for a while: it takes the leadership. The one before grants nothing from then on, and c follows the new
// one.
func TestTwoCoordinators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beat atomic.Pointer[record] // of a, as b sees it
		_, a, b, c := threeAt(t, map[string]*middle{"b": {stale: func(key string) ([]byte, bool) {
			if r := beat.Load(); r != nil && r.key == key {
				return r.value, true
			}
			return nil, false
		}}})
		lease := leaseOf(c)
		var of struct{ Agent string }
		a.j.stored("t0/coordinator", &of)
		if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}); err != nil {
			t.Fatal(err)
		}
		b.verdict()
		c.verdict()
		key := "muster/job7/beat/" + of.Agent
		beat.Store(&record{key: key, value: a.j.space.Keys()[key]})
		first := b.begin(t.Context())
		for range 20 { // the workers of a and c end
			time.Sleep(time.Second)
			select {
			case n := <-first:
				t.Fatalf("b begins without c, whose workers have a lease for %v: %+v, %v", time.Until(lease()), n.round, n.err)
			default:
			}
			if until := lease(); !until.After(time.Now()) {
				t.Fatalf("the workers of c are killed: their lease has ended %v ago", time.Since(until))
			}
		}
		for _, n := range []chan next{first, a.begin(t.Context()), c.begin(t.Context())} {
			if n := <-n; n.err != nil || n.round.GroupWorldSize != 3 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
	})
}

// TestSilentStoreAndLease: the store answers one node no more. Its workers have their grace before its lease is over.
func TestSilentStoreAndLease(t *testing.T) {
	for _, who := range []string{"a", "b"} { // a is the coordinator
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var silent atomic.Bool
				defer silent.Store(false)
				m := &middle{mute: &silent}
				j, a, b, _ := threeAt(t, map[string]*middle{who: m})
				defer j.space.Close()
				x := map[string]*agent{"a": a, "b": b}[who]
				lease := leaseOf(x)
				silent.Store(true)
				v := x.verdict()
				if until := lease(); v.Reason != "StoreLost" || v.Grace == 0 || time.Now().Add(v.Grace).After(until) {
					t.Errorf("%+v, and the lease ends in %v", v, time.Until(until))
				}
			})
		})
	}
}

// TestEndedByAnothersLoss: whoever waits for several agents ends them all by the error of one, which has lost its
// store. None of the others takes that for the end of its own session.
func TestEndedByAnothersLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		x := j.start("x", func(c *membership.Config) { c.Dial = nil })
		lost := x.begin(t.Context())
		time.Sleep(time.Second)
		x.die()
		n := <-lost
		if n.err == nil {
			t.Fatal("x goes on without a store")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		y := newJob(t, 2, 2).start("y")
		ended := y.begin(ctx)
		time.Sleep(time.Second)
		cancel(n.err)
		if got := <-ended; !errors.Is(got.err, n.err) {
			t.Errorf("%v, want %v", got.err, n.err)
		}
	})
}

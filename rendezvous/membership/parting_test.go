package membership_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// TestHostLeavesBetweenRounds: the host of the store is told to stop while the nodes meet, or while the workers of some
// still end. The others go on, with another host or with the same one, started anew, and no restart is used up.
func TestHostLeavesBetweenRounds(t *testing.T) {
	for _, names := range []string{"a b", "a b c"} {
		for _, back := range []bool{false, true} {
			for _, busy := range []time.Duration{time.Second, 20 * time.Second} {
				t.Run(fmt.Sprint(names, back, busy), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						size := len(strings.Fields(names))
						n := newNetwork(t, size-1, size)
						n.cfg.ReplaceLimit, n.cfg.CloseTimeout = 0, 30*time.Second
						if back {
							n.cfg.Min = size
						}
						all := n.firstRound(names)
						restart := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}
						if _, err := all[1].Propose(t.Context(), restart); err != nil {
							t.Fatal(err)
						}
						for _, x := range all {
							x.verdict()
						}
						ctx, cancel := context.WithCancel(t.Context())
						ended := all[0].begin(ctx)
						var meeting []chan next
						for _, x := range all[1 : size-1] {
							meeting = append(meeting, x.begin(t.Context()))
						}
						time.Sleep(busy / 2)
						cancel()
						if got := <-ended; got.err == nil {
							t.Fatalf("a round begins without %s: %+v", all[size-1].name, got.round)
						}
						late := make(chan next, 1)
						go func() {
							time.Sleep(busy / 2)
							late <- <-all[size-1].begin(t.Context())
						}()
						meeting = append(meeting, late)
						began := time.Now()
						all[0].Close()
						if took := time.Since(began); took > busy/2+2*time.Second {
							t.Errorf("the host has left after %v", took)
						}
						n.spacesOf("a").Close()
						if time.Sleep(300 * time.Millisecond); back {
							meeting = append(meeting, n.reborn().begin(t.Context()))
						}
						for _, m := range meeting {
							got := <-m
							if got.err != nil || got.round.GroupWorldSize != len(meeting) || got.round.Replacements != 0 ||
								got.round.Restarts != 1 {
								t.Errorf("%+v, %v", got.round, got.err)
							}
						}
					})
				})
			}
		}
	}
}

// TestHostOfFixedRanksLeavesIsNoLoss: the host of a store that cannot move is told to stop, in a round or between two,
// and another one of its rank takes its place.
func TestHostOfFixedRanksLeavesIsNoLoss(t *testing.T) {
	for _, size := range []int{2, 3} {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprint(size, between), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, size, size)
					n.cfg.ReplaceLimit = 0
					fixed := func(rank int) func(*membership.Config) {
						return func(c *membership.Config) { c.Fixed, c.NodeRank, c.Failover = true, rank, false }
					}
					var all []*agent
					var first []chan next
					for rank := range size {
						x := n.node(string(rune('a'+rank)), "a", fixed(rank))
						all, first = append(all, x), append(first, x.begin(t.Context()))
						synctest.Wait()
					}
					for _, m := range first {
						if got := <-m; got.err != nil {
							t.Fatal(got.err)
						}
					}
					stop := stops
					if between {
						stop = rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}
					}
					if _, err := all[0].Propose(t.Context(), stop); err != nil {
						t.Fatal(err)
					}
					var meeting []chan next
					for _, x := range all[1:] {
						x.verdict()
						if !between {
							meeting = append(meeting, x.begin(t.Context()))
						}
					}
					time.Sleep(time.Second)
					if between {
						for _, x := range all[1:] {
							meeting = append(meeting, x.begin(t.Context()))
						}
					}
					all[0].Close()
					n.spacesOf("a").Close()
					time.Sleep(300 * time.Millisecond)
					meeting = append(meeting, n.rebornAs("a2", fixed(0)).begin(t.Context()))
					for _, m := range meeting {
						if got := <-m; got.err != nil || got.round.Replacements != 0 || got.round.GroupWorldSize != size {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					}
				})
			})
		}
	}
}

// TestHostLeavesBesideSpare: a spare waits when the host of the store is told to stop, in a round or between two. The host
// waits for the workers of the last round, and neither less nor for the spare, which goes on with the others.
func TestHostLeavesBesideSpare(t *testing.T) {
	for _, between := range []bool{false, true} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 1, 3)
				n.cfg.ReplaceLimit, n.cfg.CloseTimeout = 0, 30*time.Second
				all := n.firstRound("a b c")
				meeting := []chan next{n.node("d", "a").begin(t.Context())}
				time.Sleep(3 * time.Second)
				stop := stops
				if between {
					stop = rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}
				}
				if _, err := all[0].Propose(t.Context(), stop); err != nil {
					t.Fatal(err)
				}
				for _, x := range all {
					x.verdict()
				}
				ctx, cancel := context.WithCancel(t.Context())
				if between {
					ended := all[0].begin(ctx)
					time.Sleep(time.Second)
					cancel()
					<-ended
				}
				cancel()
				meeting = append(meeting, all[1].begin(t.Context()))
				late, busy := make(chan next, 1), 12*time.Second
				go func() {
					time.Sleep(busy)
					late <- <-all[2].begin(t.Context())
				}()
				began := time.Now()
				all[0].Close()
				if took := time.Since(began); took < busy || took > busy+2*time.Second {
					t.Errorf("the host has left after %v", took)
				}
				n.spacesOf("a").Close()
				for _, m := range append(meeting, late) {
					if got := <-m; got.err != nil || got.round.GroupWorldSize != 3 || got.round.Replacements != 0 {
						t.Errorf("%+v, %v", got.round, got.err)
					}
				}
			})
		})
	}
}

// TestHurriedHostLeavesAtOnce: the host of the store is told to stop, and told so again while it waits for the workers of
// the others to end.
func TestHurriedHostLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 3)
		n.cfg.CloseTimeout = 30 * time.Second
		all := n.firstRound("a b c")
		if _, err := all[0].Propose(t.Context(), stops); err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			x.verdict()
		}
		closed := make(chan time.Time, 1)
		go func() {
			all[0].Close()
			closed <- time.Now()
		}()
		time.Sleep(5 * time.Second)
		select {
		case <-closed:
			t.Fatal("the host has not waited for the others, whose workers still end")
		default:
		}
		hurried := time.Now()
		all[0].Hurry()
		if took := (<-closed).Sub(hurried); took > time.Second {
			t.Errorf("the host has left %v after it was told to hurry", took)
		}
		n.spacesOf("a").Close()
		n.mustMeet(all[1:]...)
	})
}

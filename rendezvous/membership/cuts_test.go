package membership_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/errhint"
)

// TestSplitBrainAfterGrowth: two of three old nodes are cut off while the coordinator assigns a round of five. The
// three go on as most of the five, the two as most of the three.
func TestSplitBrainAfterGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		all := n.firstRound("a b c")
		a, b, c := all[0], all[1], all[2]
		d, e := n.node("d", "a"), n.node("e", "a")
		var lives sync.WaitGroup
		n.live(d, &lives)
		n.live(e, &lives)
		for _, x := range all {
			if v := x.verdict(); v.Reason != "ScaleUp" {
				t.Fatalf("%+v", v)
			}
		}
		n.live(b, &lives)
		n.live(c, &lives)
		synctest.Wait() // all but a have joined
		n.split("b c", "a d e")
		n.live(a, &lives)
		time.Sleep(40 * time.Second)
		n.overlaps()
		n.worlds()
		n.end(a, b, c, d, e)
		lives.Wait()
	})
}

// TestStaggeredCut: most nodes lose the host at 0 s, one of the minority 4.9 s later. That one may run until 4.9 s + 5
// s + fence, the majority begins before.
func TestStaggeredCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 5)
		var lives sync.WaitGroup
		all := n.come("a b c d", n.live, &lives)
		time.Sleep(1200 * time.Millisecond) // heartbeats of e: 1.2 s + n x 1.25 s
		all = append(all, n.come("e", n.live, &lives)...)
		time.Sleep(20*time.Second - 1200*time.Millisecond)
		t.Logf("%v cut a from b c d", time.Now().Format("05.000"))
		n.split("a", "b c d")
		n.split("e", "b c d")
		time.Sleep(4970 * time.Millisecond)
		n.split("a", "e")
		time.Sleep(40 * time.Second)
		n.overlaps()
		n.end(all...)
		lives.Wait()
	})
}

// TestDelayedLink: a node 300 ms away (each way) is cut off. It counts its silence from the answer to its second
// request, the coordinator from the arrival of the first.
func TestDelayedLink(t *testing.T) {
	for _, offset := range []time.Duration{0, 350 * time.Millisecond, 700 * time.Millisecond, 1050 * time.Millisecond} {
		t.Run(offset.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 2, 4)
				n.link("a", "d").delay.Store(int64(300 * time.Millisecond))
				var lives sync.WaitGroup
				all := n.come("a b c d", n.live, &lives)
				time.Sleep(20*time.Second + offset)
				n.split("d", "a b c")
				time.Sleep(30 * time.Second)
				n.overlaps()
				n.end(all...)
				lives.Wait()
			})
		})
	}
}

// TestHostComesSecond: another agent is the coordinator before the host has said that it is the host. The store never
// moves in such a job.
func TestHostComesSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 2, 3)
		a := h.node("a", "a") // serves from now on
		b := h.node("b", "a")
		fb := b.begin(t.Context())
		synctest.Wait() // b is the coordinator
		c := h.node("c", "a")
		meet(t.Context(), a, c)
		<-fb
		h.powerOff("a")
		for _, x := range []*agent{b, c} {
			x.verdict()
		}
		for i, n := range meet(t.Context(), b, c) {
			if n.err != nil {
				t.Errorf("agent %d: %v", i, n.err)
			}
		}
	})
}

// TestHostOfTwoGoesOn: of two nodes the one without the store, which is the coordinator, dies. The host is to go on.
func TestHostOfTwoGoesOn(t *testing.T) {
	for _, nodes := range []int{2, 4} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, 1, nodes+1)
				a := n.node("a", "a", late)
				fa := a.begin(t.Context())
				synctest.Wait() // a has said that it is the host
				b := n.node("b", "a")
				fb := b.begin(t.Context())
				synctest.Wait() // b is the coordinator
				c, d := n.node("c", "a"), n.node("d", "a")
				left := []*agent{a}
				if nodes == 4 {
					meet(t.Context(), c, d)
					left = append(left, d)
				}
				<-fa
				<-fb
				n.split("b c", "a d")
				cut := time.Now()
				for _, x := range left {
					t.Logf("after %v %+v", time.Since(cut), x.verdict())
				}
				for i, g := range meet(t.Context(), left...) {
					t.Logf("after %v: round %+v, %v", time.Since(cut), g.round, g.err)
					if g.err != nil {
						t.Errorf("agent %d: half of the nodes and the store are to go on: %v", i, g.err)
					}
				}
			})
		})
	}
}

// TestSpareOfDeadHost: the spare cannot take the place of the host of the store.
func TestSpareOfDeadHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t, 3, 4)
		h.cfg.Spares = 1
		a := h.node("a", "a")
		first := a.begin(t.Context())
		synctest.Wait()
		b, c := h.node("b", "a"), h.node("c", "a")
		fb, fc := b.begin(t.Context()), c.begin(t.Context())
		<-first
		<-fb
		<-fc
		d := h.node("d", "a")
		spare := d.begin(t.Context())
		time.Sleep(20 * time.Second)
		h.powerOff("a")
		b.verdict()
		c.verdict()
		for i, n := range append(meet(t.Context(), b, c), <-spare) {
			if n.err != nil {
				t.Errorf("agent %d: %v", i, n.err)
			}
		}
	})
}

// TestHungStandby: the first standby is cut off when it has the votes and before it says so; the others are most of the
// last round and reach each other.
func TestHungStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 6)
		rest := n.firstRound("a b c d e f")[1:]
		t.Log("ranks", keepRanks(nil))
		n.split("a", "b c d e f")
		for _, x := range rest {
			x.verdict()
		}
		// b is the first standby (ranks are by name). It stands still just when all have voted.
		var got []chan next
		for _, x := range rest[1:] {
			got = append(got, x.begin(t.Context()))
		}
		time.Sleep(100 * time.Millisecond)
		n.split("b", "a c d e f")
		for i, g := range got {
			if r := <-g; r.err != nil {
				t.Errorf("agent %d: %v", i, r.err)
			}
		}
	})
}

// TestStoppedNodeDoesNotComeBack: one node of three stands still for 8 s (SIGSTOP, a cut link) and goes on. The host
// and the third have gone on, and would take it in; it never asks them.
func TestStoppedNodeDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 2, 3)
		var lives sync.WaitGroup
		all := n.come("a b c", n.live, &lives)
		time.Sleep(20 * time.Second)
		n.split("c", "a b")
		time.Sleep(8 * time.Second)
		n.mend("c", "a b")
		time.Sleep(time.Minute)
		n.mu.Lock()
		if err := n.errs["c"]; err != nil {
			t.Errorf("status %d: %v", errhint.CodeOf(err), err)
		}
		n.mu.Unlock()
		n.end(all...)
		lives.Wait()
	})
}

package membership_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

// obedient is live for an agent that leaves when it is told to stop, in a round or between two. Its workers take up to
// some seconds to end, by rnd.
func (n *network) obedient(told context.Context, a *agent, rnd *rand.Rand, done *sync.WaitGroup) {
	pauses := make([]time.Duration, 64)
	for i := range pauses {
		pauses[i] = time.Duration(rnd.IntN(6000)) * time.Millisecond
	}
	done.Go(func() {
		for i := 0; told.Err() == nil; i++ {
			r := <-a.begin(told)
			if r.err != nil {
				n.t.Logf("%v %s ends: %v", time.Now().Format("05.000"), a.name, r.err)
				break
			}
			said := make(chan struct{})
			stop := context.AfterFunc(told, func() {
				defer close(said)
				_, _ = a.Propose(n.t.Context(), stops)
			})
			n.workers(a, r.round)
			if !stop() {
				<-said
			}
			time.Sleep(pauses[i%len(pauses)])
		}
		a.Close()
		n.t.Logf("%v %s has left", time.Now().Format("05.000"), a.name)
		n.spacesOf(a.name).Close()
	})
}

// TestChaosLeaves is TestChaosReborn with a host that is told to stop, and not killed: in a round, or
// between two that follow each other when a worker fails.
func TestChaosLeaves(t *testing.T) {
	seeds, quiet := chaosSeeds()
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(seed), 5))
				n := newNetwork(t, 3, 5)
				n.cfg.LastCall, n.cfg.CloseTimeout = time.Second, 30*time.Second
				if quiet {
					n.cfg.Log = zerolog.Nop()
				}
				told, stop := context.WithCancel(t.Context())
				defer stop()
				var lives sync.WaitGroup
				names := []string{"a", "b", "c", "d", "e"}
				var all []*agent
				for _, name := range names {
					x := n.node(name, "a")
					all = append(all, x)
					if name == "a" {
						n.obedient(told, x, rnd, &lives)
					} else {
						n.obedient(t.Context(), x, rnd, &lives)
					}
					synctest.Wait()
					time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				reborn := 0
				for range 4 + rnd.IntN(6) {
					switch what := rnd.IntN(7); {
					case what < 2:
						n.partition(rnd, names)
					case what == 2:
						n.heal(names)
					case what < 5 && reborn == 0:
						if rnd.IntN(2) == 0 { // between two rounds
							t.Logf("%v a worker of b fails", time.Now().Format("05.000"))
							if r := all[1].round(); r != nil {
								v := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}
								go func() { _, _ = r.Propose(t.Context(), v) }()
							}
							time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
						}
						t.Logf("%v a is told to stop", time.Now().Format("05.000"))
						stop()
						reborn = 1
					case reborn == 1:
						if _, err := n.spacesOf("a").Client().Add(t.Context(), "probe", 0); err == nil {
							break // it has not left yet
						}
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

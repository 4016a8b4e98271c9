package membership_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
)

// chaosSeeds are those that CHAOS_SEED and CHAOS_COUNT ask for, or some and the known ones, each of which once made two
// worlds at a time. quiet says that there is more than one.
func chaosSeeds(known ...int) (seeds []int, quiet bool) {
	first, count := 0, testutil.Few(40)
	if testutil.RaceDetector && !testutil.Soak() { // which worlds are wrong the run without it finds
		count, known = 2, known[:min(2, len(known))]
	}
	if testutil.Soak() {
		count = 20_000
	}
	if s := os.Getenv("CHAOS_SEED"); s != "" {
		first, _ = strconv.Atoi(s)
		count = 1
		known = nil
	}
	if s := os.Getenv("CHAOS_COUNT"); s != "" {
		count, _ = strconv.Atoi(s)
	}
	for seed := first; seed < first+count; seed++ {
		seeds = append(seeds, seed)
	}
	return append(seeds, known...), count > 1
}

// TestChaos cuts and heals the network between five nodes and a newcomer at random: no two worlds at a time.
func TestChaos(t *testing.T) {
	seeds, quiet := chaosSeeds(900, 1592, 2457, 2773, 3069, 3872, 31697, 33298)
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(seed), 7))
				n := newNetwork(t, 1+rnd.IntN(3), 6)
				n.cfg.LastCall = time.Second
				if quiet {
					n.cfg.Log = zerolog.Nop()
				}
				var lives sync.WaitGroup
				names := []string{"a", "b", "c", "d", "e", "f", "g"}
				var all []*agent
				for i, name := range names {
					if i < 5 {
						x := n.node(name, "a")
						all = append(all, x)
						n.live(x, &lives)
						synctest.Wait()
						time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
					}
				}
				time.Sleep(10 * time.Second)
				late := 5
				for range 4 + rnd.IntN(6) {
					what := rnd.IntN(7)
					switch {
					case what < 4: // a partition
						n.partition(rnd, names)
					case what == 4: // one link
						x, y := names[rnd.IntN(7)], names[rnd.IntN(7)]
						if x != y {
							n.link(x, y).cut.Store(true)
							t.Logf("%v cut %s-%s", time.Now().Format("05.000"), x, y)
						}
					case what == 5:
						n.heal(names)
					case late < 7 && !n.link(names[late], "a").cut.Load() && !n.ended("a"):
						x := n.node(names[late], "a")
						late++
						all = append(all, x)
						n.live(x, &lives)
						t.Logf("%v newcomer %s", time.Now().Format("05.000"), x.name)
					}
					synctest.Wait()
					time.Sleep(time.Duration(rnd.IntN(7000)) * time.Millisecond)
				}
				time.Sleep(30 * time.Second)
				n.overlaps()
				n.end(all...)
				n.allEnd(&lives)
			})
		})
	}
}

// ended reports whether an agent has ended.
func (n *network) ended(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.errs[name] != nil
}

package membership_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWorldThatRunsOutlivesOneThatWaits: a and e of five die, and b is elected where b, c and d wait for a fourth. Four
// others, cut off from them, have begun the job again where the store was before. They run on when the network is whole
// again: the three have begun nothing, and may never.
func TestWorldThatRunsOutlivesOneThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 4, 5)
		var lives sync.WaitGroup
		all := append(n.come("a", n.mortal, &lives), n.come("b c d", n.live, &lives)...)
		all = append(all, n.come("e", n.mortal, &lives)...)
		time.Sleep(20 * time.Second)
		n.split("b c d", "a a2 f g h")
		n.spacesOf("e").Close()
		n.spacesOf("a").Close()
		time.Sleep(20 * time.Second)
		a2 := n.reborn()
		all = append(all, a2)
		n.live(a2, &lives)
		synctest.Wait()
		all = append(all, n.come("f g h", n.live, &lives)...)
		time.Sleep(20 * time.Second)
		n.goOn(4)
		n.mend("b c d", "a a2 f g h")
		time.Sleep(30 * time.Second)
		n.worlds()
		n.overlaps()
		n.goOn(4)
		n.end(all...)
		n.allEnd(&lives)
	})
}

package dlrover

import (
	"context"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous"
)

// A master that was replaced knows nothing of the job: its nodes tell it again, and the numbers of rounds go on.
func TestMasterBeginsAnew(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	next(t, a, b)
	next(t, a, b)
	f.with(f.forget)
	rounds := next(t, a, b)
	if rounds[0].Number != 2 || rounds[1].Number != 2 || !f.heard("RendezvousParams") {
		t.Errorf("%+v; the master has heard %q", rounds, f.said)
	}
}

// besideOthers has node 1 wait for its next round while others train without it, and returns where Next tells its error.
func besideOthers(t *testing.T, f *fake, limit time.Duration) <-chan error {
	t.Helper()
	f.round, f.world = 5, map[int]int{0: 1, 2: 1}
	n := open(t, f, 1)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		_, err := n.Next(ctx, rendezvous.Member{LocalWorldSize: 1})
		ended <- err
	}()
	testutil.Eventually(t, time.Minute, "the node waits", func() bool { return f.waits(1) })
	return ended
}

// A master that was replaced while a node waits knows nothing of it: the node joins once more, whatever the others have
// done at the new one meanwhile.
func TestMasterBeginsAnewForWaiting(t *testing.T) {
	t.Parallel()
	for name, rounds := range map[string]int{"fewer rounds": 2, "as many": 5, "more": 6, "nodes are gathered": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 2, 2)
			ended := besideOthers(t, f, 2*time.Minute)
			f.with(func() {
				f.forget()
				if f.round = rounds; rounds > 0 {
					f.world = map[int]int{0: 1, 2: 1}
				}
			})
			testutil.Eventually(t, time.Minute, "the node waits at the new master", func() bool { return f.waits(1) })
			f.with(func() {
				f.waiting[0] = 1
				f.kv[torchKey(rounds+1, keyMasterAddr)], f.kv[torchKey(rounds+1, keyMasterPort)] = []byte("10.0.0.1"), []byte("99")
			})
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A master forgets who waits for the training when an agent joins a network check: a node without one joins once more,
// whether the others train without it by then, or one waits for it.
func TestMasterForgetsWaiting(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	for name, train := range map[string]bool{"others train": true, "one waits": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, 2, 2)
			ended := besideOthers(t, f, 3*time.Minute)
			f.with(func() {
				f.waiting = map[int]int{0: 1}
				if train {
					f.round, f.world, f.waiting = 6, map[int]int{0: 1, 2: 1}, map[int]int{}
				}
				for round := range 8 {
					f.kv[torchKey(round, keyMasterAddr)], f.kv[torchKey(round, keyMasterPort)] = []byte("10.0.0.1"), []byte("99")
				}
			})
			if train {
				testutil.Eventually(t, time.Minute, "the node waits again", func() bool { return f.waits(1) })
				f.with(func() { f.waiting[0] = 1 })
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A master that was replaced while others are tested without a node knows nothing of that node: it joins once more.
func TestMasterBeginsAnewForTested(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	f.check = checkFake{agents: []int{0}, open: true, without: true}
	n := open(t, f, 1)
	n.AtPairs(rendezvous.Pairs{Open: func(context.Context) (rendezvous.PairTest, error) { return pairTest{}, nil }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_, _ = n.Next(ctx, rendezvous.Member{LocalWorldSize: 1}) // the others never take it in
		close(ended)
	}()
	joined := func() (joined bool) {
		f.with(func() { joined = f.check.rounds > 0 })
		return joined
	}
	testutil.Eventually(t, time.Minute, "the node waits for its test", joined)
	f.with(func() {
		f.forget()
		f.check.world = map[int]int{0: 1}
	})
	testutil.Eventually(t, time.Minute, "the node waits for its test at the new master", joined)
	cancel()
	<-ended
}

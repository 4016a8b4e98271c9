package rollcall_test

import (
	"testing"
	"testing/synctest"

	"muster/rendezvous"
)

// TestBoard: the agents of a round share a board, which is empty in the next one; a node that is alone has none.
func TestBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		a := j.start("a")
		first := a.begin(t.Context())
		if n := <-first; n.err != nil || n.round.GroupWorldSize != 1 || a.Board() != nil {
			t.Fatalf("%+v, %v", n, a.Board())
		}
		b := j.start("b")
		fb := b.begin(t.Context())
		a.verdict()
		meet(t.Context(), a)
		<-fb
		if err := a.Board().Set(t.Context(), "k", []byte("v")); err != nil {
			t.Error(err)
		}
		if v, err := b.Board().Get(t.Context(), "k"); string(v) != "v" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Restarts: 1, Status: 1})
		b.verdict()
		meet(t.Context(), a, b)
		if n, err := b.Board().Add(t.Context(), "k", 1); n != 1 || err != nil {
			t.Errorf("%d, %v: not a board of its own", n, err)
		}
	})
}

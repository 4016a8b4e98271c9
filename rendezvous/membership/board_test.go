package membership_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

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
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if v, err := b.Board().Get(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q, %v: not a board of its own", v, err)
		}
	})
}

// TestBoardSetAgain: what an agent says last under a key of the board stays there, and is no word that was taken away.
func TestBoardSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		a, b := j.start("a"), j.start("b")
		meet(t.Context(), a, b)
		for _, word := range []string{"first", "second"} {
			if err := a.Board().Set(t.Context(), "k", []byte(word)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * time.Minute)
		if v, err := b.Board().Get(t.Context(), "k"); string(v) != "second" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		select {
		case v := <-a.Verdict():
			t.Errorf("%+v", v)
		default:
		}
	})
}

// TestBoardSetOften: an agent that says something often has one look at each key, and what it has said last stands
// there.
func TestBoardSetOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		a, b := j.start("a"), j.start("b")
		meet(t.Context(), a, b)
		before := runtime.NumGoroutine()
		for n := range 500 {
			if err := a.Board().Set(t.Context(), "k", fmt.Append(nil, n)); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if more := runtime.NumGoroutine() - before; more > 50 {
			t.Errorf("%d goroutines look after one key", more)
		}
		time.Sleep(2 * time.Minute)
		if v, err := b.Board().Get(t.Context(), "k"); string(v) != "499" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
	})
}

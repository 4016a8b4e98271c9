package membership_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
)

// TestAgentOfEarlierStart: an agent stands still. Meanwhile its job is started anew, under the same run id and at the
// same address, and runs. Then it goes on, and comes to the new one: there it is a new node, whatever it knows. It ends
// nothing, uses up nothing and takes nobody's place.
func TestAgentOfEarlierStart(t *testing.T) {
	for _, size := range []int{2, 3} {
		for _, rounds := range []int{1, 3} {
			t.Run(fmt.Sprint(size, " nodes, ", rounds, " rounds"), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					defer cancel()
					n := newNetwork(t, size, size)
					n.cfg.ReplaceLimit, n.cfg.Token = size-2, jobToken // three elect another host by themselves, where they may
					restart := func(restarts int, agents ...*agent) []next {
						v := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: restarts}
						if _, err := agents[0].Propose(t.Context(), v); err != nil {
							t.Fatal(err)
						}
						for _, x := range agents {
							x.verdict()
						}
						return meet(ctx, agents...)
					}
					names := "a b c"[:2*size-1]
					earlier := n.firstRound(names)
					for i := range rounds - 1 {
						restart(i+1, earlier...)
					}
					old := earlier[size-1]
					for _, x := range earlier[:size-1] {
						n.spacesOf(x.name).Close()
					}
					old.verdict()

					later := []*agent{n.reborn()}
					meeting := []chan next{later[0].begin(t.Context())}
					synctest.Wait()
					for name := range strings.FieldsSeq("x y"[:2*(size-1)-1]) {
						later = append(later, n.node(name, "a"))
						meeting = append(meeting, later[len(later)-1].begin(t.Context()))
					}
					for _, m := range meeting {
						if got := <-m; got.err != nil {
							t.Fatal(got.err)
						}
					}
					time.Sleep(20 * time.Second)
					waits := old.begin(ctx)
					time.Sleep(5 * time.Second)
					for _, got := range restart(1, later...) {
						if got.err != nil || got.round.Number != 1 || got.round.Restarts != 1 || got.round.Replacements != 0 {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					}
					if _, err := later[0].Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
						t.Fatal(err)
					}
					if got := <-waits; !isOver(got.err) {
						t.Errorf("%+v, %v", got.round, got.err)
					}
				})
			})
		}
	}
}

func isOver(err error) bool {
	_, over := errors.AsType[*rendezvous.OverError](err)
	return over
}

package membership_test

import (
	"testing"
	"testing/synctest"

	"muster/rendezvous"
)

// TestSameRunID meets under the run id of a job that has ended, at a store that keeps its keys, and of one whose nodes
// all died: what the old job said of its rounds says nothing of the new one's.
func TestSameRunID(t *testing.T) {
	for name, died := range map[string]bool{"ended": false, "died": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 2, 2)
				a, b := j.start("a"), j.start("b")
				j.mustMeet(a, b)
				if err := a.Tally(t.Context(), rendezvous.Tally{Ended: 2, Failed: 1}); err != nil {
					t.Fatal(err)
				}
				if died {
					a.die()
					b.die()
				} else {
					if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
						t.Fatal(err)
					}
					a.verdict()
					b.verdict()
					a.Close()
					b.Close()
				}
				c, d := j.start("c"), j.start("d")
				got := meet(t.Context(), c, d)
				for _, n := range got {
					if n.err != nil || n.round.Number != 1 {
						t.Fatalf("%+v, %v", n.round, n.err)
					}
					if !died && n.round.Replacements != 0 {
						t.Errorf("a new job has lost %d nodes", n.round.Replacements)
					}
				}
				synctest.Wait()
				for _, x := range []*agent{c, d} {
					select {
					case v := <-x.Verdict():
						t.Errorf("%s hears %+v", x.name, v)
					default:
					}
				}
				if err := c.Tally(t.Context(), rendezvous.Tally{Ended: 2}); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				for _, x := range []*agent{c, d} {
					select {
					case sum := <-x.Tallied():
						t.Errorf("%s hears that all have ended: %+v", x.name, sum)
					default:
					}
				}
			})
		})
	}
}

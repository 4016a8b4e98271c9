package membership_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// Each rank has a count of its own: another one's losses do not use it up, and the one that has used up its own ends
// the job. A coordinator that is lost takes no counts with it.
func TestRankLimit(t *testing.T) {
	for _, c := range []struct {
		name     string
		min, max int
		lose     []string // whose node dies, one after the other; a new one of the same name comes
		end      bool     // with the last
	}{
		{"each twice", 4, 4, []string{"c", "d", "c", "d"}, false},
		{"one three times", 4, 4, []string{"c", "d", "c", "c"}, true},
		{"with another coordinator", 4, 4, []string{"c", "a", "c", "b", "c"}, true},
		{"the coordinator is replaced, too", 4, 4, []string{"a", "b", "c", "d", "a", "b", "c", "d"}, false},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, c.min, c.max)
				j.cfg.RankLimit = 2
				agents := map[string]*agent{}
				first := j.start("a")
				place := first.begin(t.Context())
				synctest.Wait() // a is the coordinator
				agents["a"] = first
				var others []*agent
				for _, name := range []string{"b", "c", "d"} {
					agents[name] = j.start(name)
					others = append(others, agents[name])
				}
				meet(t.Context(), others...)
				<-place
				for i, name := range c.lose {
					agents[name].die()
					var left []*agent
					last := rendezvous.Verdict{}
					for _, n := range []string{"a", "b", "c", "d"} {
						if n != name {
							left = append(left, agents[n])
							last = agents[n].verdict()
						}
					}
					if end := c.end && i == len(c.lose)-1; end != (last.Kind == rendezvous.Fail) {
						t.Fatalf("loss %d, of %s: %+v", i+1, name, last)
					} else if end {
						if last.Status != errhint.TryAgain || last.Reason != "RestartLimitReached" ||
							!strings.Contains(last.Message, "the 3rd loss of group rank 2") {
							t.Errorf("%+v", last)
						}
						return
					}
					agents[name] = j.start(name)
					j.mustMeet(append(left, agents[name])...)
				}
			})
		})
	}
}

// A job that goes on with fewer nodes has replaced nobody, however often it loses one.
func TestShrinkingNeedsNoReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		j.cfg.RankLimit = 1
		a := j.start("a")
		place := a.begin(t.Context())
		synctest.Wait()
		b, c := j.start("b"), j.start("c")
		meet(t.Context(), b, c)
		<-place
		for range 3 {
			c.die()
			for _, x := range []*agent{a, b} {
				if v := x.verdict(); v.Kind != rendezvous.Reassemble {
					t.Fatalf("%+v", v)
				}
			}
			j.mustMeet(a, b)
			c = j.start("c")
			place := c.begin(t.Context())
			a.verdict()
			b.verdict()
			meet(t.Context(), a, b)
			if n := <-place; n.err != nil {
				t.Fatal(n.err)
			}
		}
	})
}

// What an agent says it knows of losses is bounded.
func TestLossesAreBounded(t *testing.T) {
	for text, bad := range map[string]bool{
		"": false, "0:1,3:2": false, "x": true, "-1:1": true, "1": true, "99999999:1": true,
		strings.Repeat("1:1,", 1<<15): true,
	} {
		if err := membership.CheckLosses(text); (err != nil) != bad {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// A loss ends the job where restarts and losses have used up what it has of both.
func TestNoRestartIsLeftForALoss(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(t, 2, 2)
			j.cfg.LossLimit = 1
			a := j.start("a")
			place := a.begin(t.Context())
			synctest.Wait()
			b := j.start("b")
			meet(t.Context(), b)
			<-place
			if restarted {
				if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Status: 1, Restarts: 1}); err != nil {
					t.Fatal(err)
				}
				b.verdict()
				j.mustMeet(a, b)
			}
			b.die()
			v := a.verdict()
			if restarted != (v.Kind == rendezvous.Fail) || restarted &&
				(v.Status != errhint.TryAgain || !strings.Contains(v.Message, "no restart is left for a lost node: 1 of 1 used")) {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestRankBackAtOnce: a node is killed, and started again before the others have given it up. It waits then, and is
// counted as replaced all the same.
func TestRankBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.RankLimit = 1
		j.mustMeetLater(t, func(a, b *agent) {
			for loss := 1; loss <= 2; loss++ {
				time.Sleep(10 * time.Second)
				b.die()
				time.Sleep(500 * time.Millisecond)
				b = j.start("b")
				back := b.begin(t.Context())
				if v := a.verdict(); (v.Kind == rendezvous.Fail) != (loss == 2) {
					t.Fatalf("loss %d: %+v", loss, v)
				} else if loss == 1 {
					meet(t.Context(), a)
					<-back
				}
			}
		})
	})
}

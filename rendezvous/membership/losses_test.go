package membership_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// tooManyLost reports whether an agent has ended because the job has lost more nodes than it may.
func tooManyLost(n next) bool {
	over, is := errors.AsType[*rendezvous.OverError](n.err)
	return is && over.Verdict.Reason == "RestartLimitReached" && over.Verdict.Status == errhint.TryAgain
}

// TestHostBeginsAlone: the host of the store is killed, and its supervisor starts it again. It begins without the others,
// as the job allows, and they come later. It is a lost node all the same, and what the job has used up before counts.
func TestHostBeginsAlone(t *testing.T) {
	for _, names := range []string{"a b", "a b c"} {
		for _, token := range [][]byte{nil, jobToken} {
			t.Run(names+string(token), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					size := len(strings.Fields(names))
					n := newNetwork(t, 1, size)
					n.cfg.ReplaceLimit, n.cfg.Token = 1, token
					all := n.firstRound(names)
					restart := rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}
					if _, err := all[1].Propose(t.Context(), restart); err != nil {
						t.Fatal(err)
					}
					for _, x := range all {
						x.verdict()
					}
					meet(t.Context(), all...)
					n.split("b", "c") // they elect no other host
					host, rest := all[0], all[1:]
					for loss := 1; loss <= 2; loss++ {
						n.spacesOf(host.name).Close()
						for _, x := range rest {
							x.verdict()
						}
						host = n.rebornAs("a" + strconv.Itoa(loss+1))
						if got := <-host.begin(t.Context()); got.err != nil || got.round.GroupWorldSize != 1 {
							t.Fatalf("loss %d: %+v, %v", loss, got.round, got.err)
						}
						var meeting []chan next
						for _, x := range rest {
							meeting = append(meeting, x.begin(t.Context()))
						}
						v := host.verdict()
						if (v.Kind == rendezvous.Fail) != (loss == 2) {
							t.Fatalf("loss %d: %+v", loss, v)
						}
						if loss == 2 {
							if v.Reason != "RestartLimitReached" || v.Subject != "a3" ||
								!strings.Contains(v.Message, "the restart limit of 1 lost nodes is reached") {
								t.Errorf("%+v", v)
							}
						} else {
							meeting = append(meeting, host.begin(t.Context()))
						}
						for _, m := range meeting {
							got := <-m
							if loss == 2 && tooManyLost(got) {
								continue
							}
							if loss == 2 || got.err != nil || got.round.Replacements != 1 || got.round.Restarts != 1 ||
								got.round.GroupWorldSize != size {
								t.Fatalf("loss %d: %+v, %v", loss, got.round, got.err)
							}
						}
					}
				})
			})
		}
	}
}

// TestHostAndAnotherAreTwoLosses: the host of the store, which is the coordinator, too, is lost at once with another
// node. Both count, whether the others find a new host or the old one is started again; and so where no node serves the
// store.
func TestHostAndAnotherAreTwoLosses(t *testing.T) {
	for _, c := range []struct {
		name    string
		min     int
		back    string // who is started again
		durable bool
	}{
		{"the others go on", 3, "", false},
		{"the host is started again", 4, "a2", false},
		{"both are started again", 5, "a2 b2", false},
		{"no node serves the store", 3, "", true},
		{"no node serves the store, and both are started again", 5, "a2 b2", true},
	} {
		for _, limit := range []int{2, 1} {
			t.Run(fmt.Sprint(c.name, "/", limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, c.min, 5)
					n.cfg.ReplaceLimit = limit
					start := n.node
					if c.durable {
						start = func(name, _ string, _ ...func(*membership.Config)) *agent {
							return n.start(name, func(c *membership.Config) { c.Durable = true })
						}
					}
					var all []*agent
					var first []chan next
					for _, name := range []string{"a", "b", "c", "d", "e"} {
						x := start(name, "a")
						all, first = append(all, x), append(first, x.begin(t.Context()))
						synctest.Wait() // a is the coordinator
					}
					for _, m := range first {
						if got := <-m; got.err != nil || got.round.GroupWorldSize != 5 {
							t.Fatalf("%+v, %v", got.round, got.err)
						}
					}
					time.Sleep(10 * time.Second)
					for _, x := range all[:2] {
						if c.durable {
							x.die()
						} else {
							n.spacesOf(x.name).Close()
						}
					}
					if c.back != "" { // they elect no other host
						n.split("c", "d e")
						n.split("d", "e")
					}
					var meeting []chan next
					for _, x := range all[2:] {
						x.verdict()
						meeting = append(meeting, x.begin(t.Context()))
					}
					time.Sleep(300 * time.Millisecond)
					for name := range strings.FieldsSeq(c.back) {
						var x *agent
						switch {
						case c.durable:
							x = start(name, "")
						case name == "a2":
							x = n.reborn()
						default:
							x = n.node(name, "a2")
						}
						meeting = append(meeting, x.begin(t.Context()))
						synctest.Wait()
					}
					for _, m := range meeting {
						got := <-m
						if limit == 1 {
							if !tooManyLost(got) {
								t.Errorf("%+v, %v", got.round, got.err)
							}
							continue
						}
						if got.err != nil || got.round.Replacements != 2 || got.round.GroupWorldSize != len(meeting) {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					}
				})
			})
		}
	}
}

// TestHostHearsThatTheJobHasEnded: the host of three nodes is killed, and no restart is left. It is started again while
// the others end, and hears so from them; they do not wait for it for long.
func TestHostHearsThatTheJobHasEnded(t *testing.T) {
	for _, least := range []int{2, 3} {
		for _, back := range []bool{true, false} {
			t.Run(fmt.Sprint(least, back), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, least, 3)
					n.cfg.ReplaceLimit, n.cfg.JoinTimeout = 0, 10*time.Minute
					rest := n.firstRound("a b c")[1:]
					n.spacesOf("a").Close()
					var ends []chan next
					for _, x := range rest {
						x.verdict()
						ends = append(ends, x.begin(t.Context()))
					}
					died := time.Now()
					if time.Sleep(3 * time.Second); back {
						ends = append(ends, n.reborn().begin(t.Context()))
					}
					for _, m := range ends {
						if got := <-m; back && !tooManyLost(got) || errhint.CodeOf(got.err) != errhint.TryAgain && !back ||
							!strings.Contains(fmt.Sprint(got.err), "no restart is left for a lost node") {
							t.Errorf("%+v, %v", got.round, got.err)
						}
					}
					if took := time.Since(died); took > 20*time.Second {
						t.Errorf("the last one ends %v after the loss", took)
					}
				})
			})
		}
	}
}

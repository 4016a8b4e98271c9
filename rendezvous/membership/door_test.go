package membership_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// checked makes a job of agents that examine each other, and remember who was excluded.
func checked(t *testing.T, minNodes, maxNodes int) *job {
	j := newJob(t, minNodes, maxNodes)
	j.cfg.Checks, j.cfg.Quarantine = "--network-check", 10*time.Minute
	return j
}

// patient is checked for a job that goes on for many minutes: its nodes beat less often, of which it has no need.
func patient(t *testing.T, minNodes, maxNodes int) *job {
	j := checked(t, minNodes, maxNodes)
	j.cfg.KeepAlive = 20 * time.Second
	return j
}

// quiet says that no verdict comes to an agent within a time.
func (a *agent) quiet(d time.Duration) {
	a.j.t.Helper()
	select {
	case v := <-a.Verdict():
		a.j.t.Fatalf("%s: the round has ended: %+v", a.name, v)
	case <-time.After(d):
	}
}

// nothing says that an agent has no place yet.
func nothing(t *testing.T, place chan next) {
	t.Helper()
	select {
	case n := <-place:
		t.Fatalf("it has a place: %+v, %v", n.round, n.err)
	default:
	}
}

// A node that comes while others train is examined before they are stopped, and they are stopped only where it is fit.
func TestNewcomersAreExaminedAtTheDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 2, 4)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)

		if err := a.Board().Set(t.Context(), rendezvous.StandardKey, []byte("what they can do")); err != nil {
			t.Fatal(err)
		}
		bad := j.start("bad")
		sick := errors.New("a GPU has fallen off the bus")
		var asked rendezvous.Door
		bad.AtDoor(func(_ context.Context, d rendezvous.Door) error { asked = d; return sick })
		refused := bad.begin(t.Context())
		if n := <-refused; !errors.Is(n.err, sick) {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
		if asked.Round != 1 || asked.Rank != 0 || asked.Size != 1 || asked.Board != nil || string(asked.Standard) != "what they can do" {
			t.Errorf("it was examined as %+v", asked)
		}
		bad.Close()
		a.quiet(time.Minute)

		good := j.start("good")
		done := make(chan struct{})
		good.AtDoor(func(ctx context.Context, _ rendezvous.Door) error {
			select {
			case <-done:
			case <-ctx.Done():
				t.Errorf("called off: %v", context.Cause(ctx))
			}
			return nil
		})
		place := good.begin(t.Context())
		a.quiet(time.Minute) // it is still being examined
		nothing(t, place)
		close(done)
		if v := a.verdict(); v.Kind != rendezvous.Reassemble || v.Reason != "ScaleUp" {
			t.Fatalf("%+v", v)
		}
		b.verdict()
		if got := meet(t.Context(), a, b); got[0].round.GroupWorldSize != 3 || (<-place).round.GroupWorldSize != 3 {
			t.Errorf("%+v", got[0].round)
		}
	})
}

// Two nodes that wait examine each other; with a node unit of two the world is stopped for both of them, once.
func TestIdleNodesExamineEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 2, 4)
		j.cfg.Unit = 2
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		var places []chan next
		heard := make(chan string, 4)
		for _, name := range []string{"c", "d"} {
			x := j.start(name)
			x.AtDoor(func(ctx context.Context, d rendezvous.Door) error {
				if d.Size == 1 {
					return nil
				}
				own, other := "0", "1"
				if d.Rank == 1 {
					own, other = other, own
				}
				if err := d.Board.Set(ctx, "said/"+own, []byte(name)); err != nil {
					return err
				}
				text, err := d.Board.Get(ctx, "said/"+other)
				heard <- string(text)
				return err
			})
			places = append(places, x.begin(t.Context()))
			if name == "c" {
				a.quiet(time.Minute) // alone it makes no larger world
				nothing(t, places[0])
			}
		}
		if v := a.verdict(); v.Reason != "ScaleUp" {
			t.Fatalf("%+v", v)
		}
		if x, y := <-heard, <-heard; x == y || !strings.Contains("cd", x) || !strings.Contains("cd", y) {
			t.Errorf("they hear %q and %q", x, y)
		}
		b.verdict()
		meet(t.Context(), a, b)
		for _, p := range places {
			if n := <-p; n.err != nil || n.round.GroupWorldSize != 4 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
	})
}

// Where a node is lost while several examine each other that is called off: the others do not wait for it, or blame it.
// And where a round begins meanwhile, its check takes the place of theirs.
func TestExaminationIsCalledOff(t *testing.T) {
	for _, lost := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			j := checked(t, 2, 4)
			a, b := j.start("a"), j.start("b")
			j.mustMeet(a, b)
			sizes := make(chan int, 8)
			newcomer := func(ctx context.Context, name string) (*agent, chan next) {
				x := j.start(name)
				x.AtDoor(func(ctx context.Context, d rendezvous.Door) error {
					if sizes <- d.Size; d.Size == 1 {
						return nil
					}
					<-ctx.Done()
					return context.Cause(ctx)
				})
				return x, x.begin(ctx)
			}
			life, kill := context.WithCancel(t.Context())
			defer kill()
			c, placeC := newcomer(life, "c")
			_, placeD := newcomer(t.Context(), "d")
			a.quiet(30 * time.Second)
			nothing(t, placeC)
			want := 4
			if lost {
				want = 3
				kill()
				<-placeC
				c.Close()
			} else if _, err := a.Propose(t.Context(),
				rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Status: 1, Restarts: 1}); err != nil {
				t.Fatal(err)
			}
			a.verdict()
			b.verdict()
			meet(t.Context(), a, b)
			if n := <-placeD; n.err != nil || n.round.GroupWorldSize != want {
				t.Errorf("%+v, %v", n.round, n.err)
			}
			if x, y := <-sizes, <-sizes; x != 2 || y != 2 {
				t.Errorf("they were examined with %d and %d nodes", x, y)
			}
			if lost && <-sizes != 1 {
				t.Error("the one that is left was not examined by itself")
			}
		})
	}
}

// A node that was excluded waits until its cool-down is over, which doubles; by its accelerators it is known under
// another name, and another machine of its name is not meant.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := patient(t, 2, 4)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		gone := []rendezvous.Exclusion{{Node: "c", IDs: []string{"GPU-1", "GPU-2"}, Reason: "ecc"}}
		if err := a.Exclude(t.Context(), gone, true); err != nil {
			t.Fatal(err)
		}
		with := func(ids ...string) func(*membership.Config) { return func(c *membership.Config) { c.IDs = ids } }
		came := time.Now()
		var examined []time.Duration
		back := j.start("renamed", with("GPU-2", "GPU-3"))
		back.AtDoor(func(ctx context.Context, _ rendezvous.Door) error {
			examined = append(examined, time.Since(came).Round(time.Minute))
			if err := back.Exclude(ctx, gone, true); err != nil {
				return err
			}
			return errors.New("still sick")
		})
		place := back.begin(t.Context())
		a.quiet(9 * time.Minute)
		nothing(t, place)
		if n := <-place; n.err == nil || n.err.Error() != "still sick" {
			t.Fatalf("%v", n.err)
		}
		back.Close()
		again := j.start("c", with("GPU-1"))
		again.AtDoor(func(context.Context, rendezvous.Door) error {
			examined = append(examined, time.Since(came).Round(time.Minute))
			return nil
		})
		place = again.begin(t.Context())
		a.quiet(19 * time.Minute)
		nothing(t, place)
		other := j.start("c", with("GPU-9"))
		otherPlace := other.begin(t.Context())
		if v := a.verdict(); v.Reason != "ScaleUp" { // for the other machine of that name
			t.Fatalf("%+v", v)
		}
		b.verdict()
		meet(t.Context(), a, b)
		if n := <-otherPlace; n.err != nil || n.round.GroupWorldSize != 3 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		if v := a.verdict(); v.Reason != "ScaleUp" {
			t.Fatalf("%+v", v)
		}
		if len(examined) != 2 || examined[0] != 10*time.Minute || examined[1] != 30*time.Minute {
			t.Errorf("examined after %v, want 10 min and 30", examined)
		}
	})
}

// A node that finds itself at fault leaves at once, also where the coordinator learns of it before the node has said
// so.
func TestExcludedWhileItIsExamined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 2, 4)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		bad := j.start("bad")
		bad.AtDoor(func(ctx context.Context, _ rendezvous.Door) error {
			if err := bad.Exclude(ctx, []rendezvous.Exclusion{{Node: "bad", Reason: "ecc"}}, true); err != nil {
				return err
			}
			select { // a busy machine
			case <-time.After(time.Minute):
			case <-ctx.Done():
				t.Errorf("called off: %v", context.Cause(ctx))
			}
			return errors.New("sick")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if n := <-bad.begin(ctx); n.err == nil || n.err.Error() != "sick" {
			t.Fatalf("%v", n.err)
		}
		a.quiet(time.Minute)
	})
}

// What is known of excluded nodes outlives the coordinator, also where the word of the check's leader has not come to
// the store.
func TestQuarantineOutlivesTheCoordinator(t *testing.T) {
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			j := patient(t, 2, 4)
			a, first := j.coordinator("a")
			b, c := j.start("b"), j.start("c")
			meet(t.Context(), b, c)
			<-first
			for i, x := range []*agent{a, b, c} {
				if err := x.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "d", Reason: "ecc"}}, told && i == 1); err != nil {
					t.Fatal(err)
				}
			}
			a.die()
			b.verdict()
			c.verdict()
			j.mustMeet(b, c)
			d := j.start("d")
			d.AtDoor(func(context.Context, rendezvous.Door) error { return nil })
			place := d.begin(t.Context())
			b.quiet(5 * time.Minute)
			nothing(t, place)
		})
	}
}

// A node in quarantine without which no round can begin is examined at once: only where it is fit the others take it.
func TestQuarantineOfANodeThatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 2, 2)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		a.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "b", Reason: "ecc"}}, true)
		b.Close()
		a.verdict()
		waits := a.begin(t.Context())
		back := j.start("b")
		fit := false
		sick := errors.New("still sick")
		examine := func(context.Context, rendezvous.Door) error {
			if fit {
				return nil
			}
			return sick
		}
		back.AtDoor(examine)
		if n := <-back.begin(t.Context()); !errors.Is(n.err, sick) {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
		back.Close()
		nothing(t, waits)
		fit = true
		back = j.start("b")
		back.AtDoor(examine)
		place := back.begin(t.Context())
		if n := <-place; n.err != nil || n.round.Number != 1 {
			t.Errorf("%+v, %v", n.round, n.err)
		}
		<-waits
	})
}

// Without a quarantine a node may come back at once; and what is in the store is believed only from an agent of the
// job.
func TestNoQuarantine(t *testing.T) {
	for name, harm := range map[string]func(j *job, a *agent){
		"switched off": func(_ *job, a *agent) { a.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "c"}}, true) },
		"forged": func(j *job, _ *agent) {
			forged := []byte(`{"nodes":[{"node":"c","count":1,"until":99999999999999,"cool":600000}]}`)
			if err := j.space.Client().Set(t.Context(), "muster/job7/quarantine", forged); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := checked(t, 2, 4)
				if name == "forged" {
					j.cfg.Token = []byte("a token of this job, long enough")
				} else {
					j.cfg.Quarantine = 0
				}
				a, b := j.start("a"), j.start("b")
				j.mustMeet(a, b)
				harm(j, a)
				c := j.start("c")
				place := c.begin(t.Context())
				if v := a.verdict(); v.Reason != "ScaleUp" {
					t.Fatalf("%+v", v)
				}
				b.verdict()
				meet(t.Context(), a, b)
				if n := <-place; n.err != nil {
					t.Error(n.err)
				}
				if name == "forged" { // what somebody has put there does not keep others from being remembered
					if err := a.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "e"}}, true); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A node with more accelerators than a record has room for is not refused for that, and known by the first of them; one
// that has no name takes nothing from the others that are remembered.
func TestQuarantineOfManyAccelerators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := patient(t, 2, 4)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		var ids []string
		for i := range 500 {
			ids = append(ids, strings.Repeat("GPU", 20)+strconv.Itoa(i))
		}
		for _, gone := range []rendezvous.Exclusion{{Node: "c", IDs: ids, Reason: "ecc"}, {Reason: "nobody"}} {
			if err := a.Exclude(t.Context(), []rendezvous.Exclusion{gone}, true); err != nil {
				t.Fatal(err)
			}
		}
		came := time.Now()
		c := j.start("renamed", func(c *membership.Config) { c.IDs = append([]string{"", "a,b"}, ids...) })
		place := c.begin(t.Context())
		a.quiet(9*time.Minute + 55*time.Second)
		nothing(t, place)
		a.verdict()
		if b.verdict(); time.Since(came) > 11*time.Minute {
			t.Errorf("it was kept out for %v", time.Since(came))
		}
		meet(t.Context(), a, b)
		if n := <-place; n.err != nil {
			t.Error(n.err)
		}
	})
}

// A coordinator that is new knows at once who is in quarantine: also where a job begins anew at a store that has kept
// it.
func TestQuarantineFromTheFirstRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 2, 3)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		if err := a.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "c", Reason: "ecc"}}, true); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
			t.Fatal(err)
		}
		a.verdict()
		b.verdict()
		<-a.begin(t.Context())
		<-b.begin(t.Context())
		a.Close()
		b.Close()
		kept := j.space.Keys()["muster/job7/quarantine"]
		again := checked(t, 2, 3)
		again.space.Put("muster/job7/quarantine", kept)
		c := again.start("c").begin(t.Context())
		synctest.Wait()
		d, e := again.start("d"), again.start("e")
		for _, n := range meet(t.Context(), d, e) {
			if n.err != nil || n.round.GroupWorldSize != 2 {
				t.Errorf("%+v, %v", n.round, n.err)
			}
		}
		nothing(t, c)
	})
}

// A node that was not excluded again for as long as its last cool-down was is forgotten, by those who remember it too:
// the next time is the first.
func TestQuarantineForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := patient(t, 2, 4)
		a, b := j.start("a"), j.start("b")
		j.mustMeet(a, b)
		exclude := func() {
			for i, x := range []*agent{a, b} {
				if err := x.Exclude(t.Context(), []rendezvous.Exclusion{{Node: "c", Reason: "ecc"}}, i == 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		exclude()
		time.Sleep(11 * time.Minute)
		exclude()                    // for 20 min
		time.Sleep(41 * time.Minute) // and 20 more
		exclude()
		place := j.start("c").begin(t.Context())
		a.quiet(9*time.Minute + 50*time.Second)
		nothing(t, place)
		a.verdict()
		b.verdict()
		meet(t.Context(), a, b)
		if n := <-place; n.err != nil {
			t.Error(n.err)
		}
	})
}

// A node that trains alone has said what it can do, too.
func TestStandardOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := checked(t, 1, 2)
		a := j.start("a")
		if n := <-a.begin(t.Context()); n.err != nil || a.Board() != nil {
			t.Fatalf("%+v, %v", n.round, n.err)
		}
		if err := a.RoundBoard().Set(t.Context(), rendezvous.StandardKey, []byte("what it can do")); err != nil {
			t.Fatal(err)
		}
		b := j.start("b")
		asked := make(chan string, 1)
		b.AtDoor(func(_ context.Context, d rendezvous.Door) error {
			asked <- string(d.Standard)
			return nil
		})
		place := b.begin(t.Context())
		if text := <-asked; text != "what it can do" {
			t.Errorf("it is compared with %q", text)
		}
		a.verdict()
		meet(t.Context(), a)
		<-place
	})
}

package membership_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// TestDeposedWithoutGrace: the coordinator is not the host, and most nodes are cut off from the host with it. The host
// hears of it as "the coordinator is lost", and its workers have all the time they want.
func TestDeposedWithoutGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, 1, 4)
		n.cfg.JoinTimeout = 10 * time.Minute
		a := n.node("a", "a", late)
		fa := a.begin(t.Context())
		synctest.Wait() // a has said that it is the host
		b := n.node("b", "a")
		fb := b.begin(t.Context())
		synctest.Wait() // b is the coordinator
		c, d := n.node("c", "a"), n.node("d", "a")
		meet(t.Context(), c, d)
		<-fa
		<-fb
		time.Sleep(10 * time.Second)
		n.split("a", "b c d")
		cut := time.Now()
		v := a.verdict()
		t.Logf("after %v the host hears %+v", time.Since(cut), v)
		if v.Kind == rendezvous.Reassemble && v.Grace == 0 {
			t.Errorf("the host is cut off from all others, and its workers get no bound on their grace: %+v", v)
		}
		got := <-a.begin(t.Context())
		t.Logf("after %v the host gets %+v, %v", time.Since(cut), got.round, got.err)
		if took := time.Since(cut); took > 20*time.Second {
			t.Errorf("the host of which 3 of 4 are cut off gives up after %v: %v", took, got.err)
		}
	})
}

// TestTicketPassedOver: a ticket is drawn just before the coordinator's wait for it is renewed, and written just after.
func TestTicketPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 3)
		far := func(c *membership.Config) {
			l := &link{}
			l.delay.Store(int64(20 * time.Millisecond))
			c.Store = &cable{Client: j.space.Client(), l: l}
		}
		a := j.start("a")
		first := a.begin(t.Context())
		synctest.Wait()
		// a's wait for ticket 2 began at 0, and is renewed every 5 s.
		time.Sleep(5*time.Second - 150*time.Millisecond)
		b, c := j.start("b", far), j.start("c", far)
		fb := b.begin(t.Context()) // 20 ms: term, 60: coordinator, 100: beat, 140: ticket drawn, 180: ticket written
		fc := c.begin(t.Context())
		for name, f := range map[string]chan next{"a": first, "b": fb, "c": fc} {
			if n := <-f; n.err != nil {
				t.Errorf("%s: %v", name, n.err)
			}
		}
	})
}

// TestDroppedSpare: the same as a spare, which waits for ever: no time passes for it while a round runs, and when the
// node that it stands in for is lost, it does not come.
func TestDroppedSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.mustMeetLater(t, func(a, b *agent) {
			var beats atomic.Int64
			s := j.start("s", func(c *membership.Config) {
				c.Store = &cable{
					Client: j.space.Client(),
					before: func(op, key string) time.Duration {
						if op == "set" && strings.Contains(key, "/beat/") {
							if beats.Add(1) == 8 {
								return 4600 * time.Millisecond
							}
						}
						return 0
					},
					after: func(op, key string) time.Duration {
						if op == "set" && strings.Contains(key, "/beat/") && beats.Load() == 7 {
							return 1200 * time.Millisecond
						}
						return 0
					},
				}
			})
			spare := s.begin(t.Context())
			time.Sleep(30 * time.Second)
			b.die()
			a.verdict()
			again := <-a.begin(t.Context())
			if again.err != nil {
				t.Errorf("no spare comes for the lost node: %v", again.err)
			}
			select {
			case n := <-spare:
				t.Logf("spare: %+v %v", n.round, n.err)
			case <-time.After(time.Hour):
				t.Error("the spare waits for more than an hour, whose join timeout is a minute")
			}
		})
	})
}

// TestNoHeartbeatKey: a record of an agent without a heartbeat key (another version, another program, a key deleted):
// the coordinator's next look waits for that key for ever, and with it the whole job.
func TestNoHeartbeatKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		j.cfg.JoinTimeout = 20 * time.Second
		j.mustMeetLater(t, func(a, b *agent) {
			foreign := j.space.Client()
			leadership := j.leadership(0)
			n, err := foreign.Add(t.Context(), leadership+"tickets", 1)
			if err != nil {
				t.Fatal(err)
			}
			foreign.Set(t.Context(), fmt.Sprintf("%sjoin/%d", leadership, n),
				[]byte(`{"agent":"stranger","workers":1,"node_rank":-1,"round":-1}`))
			time.Sleep(10 * time.Second)
			b.die()
			select {
			case v := <-a.Verdict():
				t.Logf("%+v", v)
			case <-time.After(time.Hour):
				t.Fatal("a node died an hour ago, and the coordinator has not noticed")
			}
		})
	})
}

// TestClaimedAndDied: an agent claims the leadership and dies before its first heartbeat. The others take the store for
// dead.
func TestClaimedAndDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		first := j.start("first", func(c *membership.Config) {
			c.Store = &cable{Client: c.Store.(*memstore.Client), before: func(op, key string) time.Duration {
				if op == "set" && strings.Contains(key, "/beat/") {
					return time.Hour
				}
				return 0
			}}
		})
		died, kill := context.WithCancel(t.Context())
		f := first.begin(died)
		synctest.Wait()
		first.die()
		kill()
		<-f
		a, b := j.start("a"), j.start("b")
		for i, n := range meet(t.Context(), a, b) {
			if n.err != nil {
				t.Errorf("agent %d: %v", i, n.err)
			}
		}
	})
}

// TestOutageIsNoReplacement: etcd is away for a minute, nobody is lost.
func TestOutageIsNoReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 3)
		j.cfg.JoinTimeout = 10 * time.Minute
		var out atomic.Bool
		var agents []*agent
		for i := range 3 {
			agents = append(agents, j.start(fmt.Sprint(i), func(c *membership.Config) {
				c.Store, c.Durable = &wire{Client: j.space.Client(), cuts: []*atomic.Bool{&out}}, true
			}))
		}
		j.mustMeet(agents...)
		out.Store(true)
		for _, a := range agents {
			a.verdict()
		}
		var back []chan next
		for _, a := range agents {
			back = append(back, a.begin(t.Context()))
		}
		time.Sleep(time.Minute)
		out.Store(false)
		for i := range agents {
			if n := <-back[i]; n.err != nil || n.round.Replacements != 0 {
				t.Errorf("agent %d: %d nodes were lost, none in truth; %v", i, n.round.Replacements, n.err)
			}
		}
	})
}

// TestReplaceLimitOfCoordinator: the limit says that no lost node may be replaced, and the coordinator is lost.
func TestReplaceLimitOfCoordinator(t *testing.T) {
	for _, who := range []string{"other", "coordinator"} {
		t.Run(who, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 1, 2)
				j.cfg.ReplaceLimit, j.cfg.LastCall = 0, 0
				j.cfg.Min = 2
				j.mustMeetLater(t, func(a, b *agent) {
					dead, left := b, a
					if who == "coordinator" {
						dead, left = a, b
					}
					c := j.start("c")
					c.begin(t.Context())
					time.Sleep(time.Second)
					dead.die()
					v := left.verdict()
					if v.Kind == rendezvous.Fail {
						return
					}
					n := <-left.begin(t.Context())
					if n.err == nil {
						t.Errorf("a replacement beyond the limit of 0: %+v after %+v", n.round, v)
					}
				})
			})
		})
	}
}

// TestSpareAndEnd: the coordinator dies as the job succeeds, a spare waits: for it the job is over, too.
func TestSpareAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		j.mustMeetLater(t, func(a, b *agent) {
			s := j.start("s")
			spare := s.begin(t.Context())
			time.Sleep(10 * time.Second)
			a.die()
			if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
				t.Fatal(err)
			}
			b.verdict()
			b.Close()
			n := <-spare
			if n.err == nil {
				t.Errorf("the job has succeeded, and the spare trains again: %+v", n.round)
			} else {
				t.Logf("%v", n.err)
			}
		})
	})
}

// TestMixedCloseHangs: the store stops answering while the coordinator looks at heartbeats, and the meeting with
// torchrun's agents is complete just then. What it tells the loop is never taken in, and Next and Close wait for it for
// ever. In real time: a bubble with such a goroutine cannot end.
func TestMixedCloseHangs(t *testing.T) {
	t.Parallel()
	for name, complete := range map[string]bool{"complete": true, "control": false} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 1, 2)
			b := &bridge{join: make(chan membership.Joined)}
			l := &link{}
			c := j.cfg
			c.KeepAlive, c.JoinTimeout = 400*time.Millisecond, 3*time.Second
			c.Node, c.Addr, c.Store = "a", "a", &cable{Client: j.space.Client(), l: l}
			c.Log = zerolog.Nop()
			c.Bridge = func(membership.Conn) (membership.Bridge, error) { return b, nil }
			h, err := membership.New(c)
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := h.Next(context.Background(), rendezvous.Member{Role: "default", LocalWorldSize: 1})
				got <- err
			}()
			time.Sleep(500 * time.Millisecond)
			l.cut.Store(true)
			time.Sleep(200 * time.Millisecond) // the loop stands in a look
			if complete {
				b.join <- membership.Joined{Size: 1, World: 1}
			}
			select {
			case err := <-got:
				t.Logf("%v", err)
			case <-time.After(12 * time.Second):
				t.Error("Next has not returned for 12 s, and its join timeout is 3 s")
			}
		})
	}
}

// TestMixedExit: an agent of torchrun that hosts the store leaves as soon as everybody has entered the exit barrier,
// and the coordinator has no time to say how the round ends.
func TestMixedExit(t *testing.T) {
	for name, entered := range map[string]bool{"everybody has succeeded": true, "the host dies before": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 3, 3)
				b := &bridge{join: make(chan membership.Joined)}
				var refused atomic.Int64
				mixed := func(c *membership.Config) {
					c.Bridge = func(membership.Conn) (membership.Bridge, error) { return b, nil }
					dial := c.Dial
					c.Dial = func(ctx context.Context, at string) (membership.Conn, error) {
						if refused.Add(1) <= 2 { // once for each
							return nil, errors.New("the store is busy")
						}
						return dial(ctx, at)
					}
				}
				agents := []*agent{j.start("a", mixed), j.start("b", mixed)}
				var firsts []chan next
				for _, a := range agents {
					firsts = append(firsts, a.begin(t.Context()))
				}
				time.Sleep(5 * time.Second)
				b.join <- membership.Joined{
					Size: 3, World: 6, Others: 1, MasterAddr: "t", MasterPort: 1, AgentStore: true, Names: []string{"t", "a", "b"},
					Exit: []string{"all", "passed"},
				}
				for i, c := range firsts {
					if n := <-c; n.err != nil {
						t.Fatal(n.err)
					}
					if err := agents[i].Tally(t.Context(), rendezvous.Tally{Ended: 2}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				for _, a := range agents {
					if len(a.Tallied()) > 0 {
						t.Errorf("%s is to decide, and agents of torchrun have not ended", a.name)
					}
				}
				time.Sleep(10 * time.Second)
				want := rendezvous.Reassemble
				if entered {
					want = rendezvous.Succeed
					for _, key := range []string{"all", "passed"} {
						if err := j.space.Client().Set(t.Context(), key, nil); err != nil {
							t.Fatal(err)
						}
					}
					synctest.Wait()
				}
				j.space.Close()
				for _, a := range agents {
					if v := a.verdict(); v.Kind != want {
						t.Errorf("%s hears %+v, want %s", a.name, v, want)
					}
				}
			})
		})
	}
}

// TestBusyWait: an error of the store that is none of the expected ones makes the wait for the verdict a busy loop.
func TestBusyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		a := j.start("a")
		first := a.begin(t.Context())
		synctest.Wait()
		f := &failing{Client: j.space.Client()}
		b := j.start("b", func(c *membership.Config) { c.Store = f })
		<-b.begin(t.Context())
		<-first
		f.on.Store(true)
		time.Sleep(11 * time.Second)
		if n := f.calls.Load(); n > 1000 {
			t.Errorf("asked %d times within a second of no time", n)
		}
	})
}

// TestKeysOfOldRounds counts what stays in the store of each round.
func TestKeysOfOldRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.mustMeetLater(t, func(a, b *agent) {
			before := 0
			for i := range 20 {
				a.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: i + 1})
				a.verdict()
				b.verdict()
				meet(t.Context(), a, b)
				synctest.Wait()
				if i == 9 {
					before = j.space.NumKeys()
				}
			}
			if after := j.space.NumKeys(); after > before {
				t.Errorf("%d keys after 10 restarts, %d after 20: nothing is ever deleted", before, after)
			}
		})
	})
}

// TestForeignTerm: bytes of another program under the first key that is read.
func TestForeignTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.space.Client().Set(t.Context(), "muster/job7/term", []byte("hello"))
		n := <-j.start("a").begin(t.Context())
		if c := errhint.CodeOf(n.err); c != errhint.Usage && c != errhint.TryAgain {
			t.Errorf("status %d: %v", c, n.err)
		}
	})
}

// TestHugeRound: a record says that it was in round 2^63-1.
func TestHugeRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		a := j.start("a")
		first := a.begin(t.Context())
		synctest.Wait()
		foreign := j.space.Client()
		leadership := j.leadership(0)
		foreign.Set(t.Context(), "muster/job7/beat/stranger", []byte(`{"n":1}`))
		n, _ := foreign.Add(t.Context(), leadership+"tickets", 1)
		foreign.Set(t.Context(), fmt.Sprintf("%sjoin/%d", leadership, n),
			[]byte(`{"agent":"stranger","workers":1,"node_rank":-1,"round":9223372036854775807}`))
		<-j.start("b").begin(t.Context())
		r := <-first
		if r.err != nil {
			t.Errorf("status %d: %v", errhint.CodeOf(r.err), r.err)
		}
	})
}

// TestGarbageVerdict: what Propose says of a verdict that cannot be read is an error, while the others take it for a
// Reassemble.
func TestGarbageVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.mustMeetLater(t, func(a, b *agent) {
			j.space.Client().Set(t.Context(), j.inRound()+"verdict", []byte("garbage"))
			t.Logf("%+v", a.verdict())
			if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Restarts: 1}); err != nil {
				t.Errorf("status %d: %v", errhint.CodeOf(err), err)
			}
		})
	})
}

// TestFalselyDeposed: the coordinator's heartbeats are late once for the members, not for a spare. The spare stays with
// a coordinator whom nobody else has, and is missing when a node is lost.
func TestFalselyDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		var beats atomic.Int64
		var slow atomic.Bool
		a := j.start("a", func(c *membership.Config) {
			c.Store = &cable{
				Client: j.space.Client(),
				before: func(op, key string) time.Duration {
					if slow.Load() && op == "set" && strings.Contains(key, "/beat/") {
						if beats.Add(1) == 2 {
							return 4900 * time.Millisecond
						}
					}
					return 0
				},
				after: func(op, key string) time.Duration {
					if slow.Load() && op == "set" && strings.Contains(key, "/beat/") && beats.Load() == 1 {
						return 1240 * time.Millisecond
					}
					return 0
				},
			}
		})
		first := a.begin(t.Context())
		synctest.Wait()
		b := j.start("b")
		meet(t.Context(), b)
		<-first
		time.Sleep(600 * time.Millisecond)
		s := j.start("s")
		spare := s.begin(t.Context())
		time.Sleep(12 * time.Second)
		slow.Store(true)
		var v rendezvous.Verdict
		select {
		case v = <-b.Verdict():
		case <-time.After(30 * time.Second):
			t.Skip("not deposed")
		}
		t.Logf("%+v", v)
		a.verdict()
		got := meet(t.Context(), a, b)
		t.Logf("%+v %v", got[0].round, got[0].err)
		time.Sleep(10 * time.Second)
		b.die()
		t.Logf("%+v", a.verdict())
		if n := <-a.begin(t.Context()); n.err != nil {
			t.Errorf("%v", n.err)
		}
		if n := <-spare; n.err != nil {
			t.Errorf("spare: %v", n.err)
		}
	})
}

// TestTwoSparesAndEnd: as TestSpareAndEnd, with two spares.
func TestTwoSparesAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 1, 2)
		j.mustMeetLater(t, func(a, b *agent) {
			s, u := j.start("s"), j.start("u")
			spares := map[string]chan next{"s": s.begin(t.Context()), "u": u.begin(t.Context())}
			time.Sleep(10 * time.Second)
			a.die()
			if _, err := b.Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Succeed, Rank: -1}); err != nil {
				t.Fatal(err)
			}
			b.verdict()
			b.Close()
			var wg sync.WaitGroup
			for name, c := range spares {
				wg.Go(func() {
					n := <-c
					if n.err == nil {
						t.Errorf("the job has succeeded, and the spare %s trains again: %+v", name, n.round)
						return
					}
					t.Logf("%s: %v", name, n.err)
					map[string]*agent{"s": s, "u": u}[name].Close()
				})
			}
			wg.Wait()
		})
	})
}

// TestStoreThatDrops: the store takes connections and drops them at the first request, as a proxy without a backend
// does, or a server that is about to end. Whoever goes back to it does so without a pause.
func TestStoreThatDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 2)
		j.cfg.JoinTimeout = 30 * time.Second
		var dials atomic.Int64
		var down atomic.Bool
		a := j.start("a", func(c *membership.Config) {
			c.Log = zerolog.Nop()
			c.Dial = func(ctx context.Context, _ string) (membership.Conn, error) {
				if dials.Add(1) > 10_000 {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				client := j.space.Client()
				if down.Load() {
					client.Close()
				}
				return client, nil
			}
		})
		first := a.begin(t.Context())
		time.Sleep(time.Second)
		down.Store(true)
		j.space.Reset()
		n := <-first
		t.Logf("%v", n.err)
		if d := dials.Load(); d > 1000 {
			t.Errorf("%d connections in 30 s", d)
		}
	})
}

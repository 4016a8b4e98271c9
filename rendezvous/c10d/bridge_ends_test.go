package c10d_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/c10d"
)

// TestBridgeMemberLost loses the peer in the exchange of roles, in ways that only the bridge can see.
func TestBridgeMemberLost(t *testing.T) {
	for _, c := range []struct {
		name string
		ours string
		lose func(p *peer)
		says string
	}{
		{
			"it dies before it says what it brings", "a", func(*peer) {},
			"node m_1_0 (group rank 1) is not heard of for 15s, and has not said what it brings",
		},
		{
			"rank 0 dies before it says anything", "z", func(*peer) {},
			"node m_1_0 (group rank 0) is not heard of for 15s, and has not said what it brings",
		},
		{"rank 0 never gives the ranks", "z", func(p *peer) {
			p.say("MASTER_ADDR", "127.0.0.1")
			p.say("MASTER_PORT", "1")
			p.brings(1)
		}, "node m_1_0 (group rank 0) has not said the ranks for 1m0s"},
		{
			"nobody knows where the workers meet", "z", func(p *peer) { p.brings(1) },
			"node m_1_0 (group rank 0) has not said where the workers meet, in this round or an earlier one",
		},
		{"one with a higher rank has left", "z", func(p *peer) {
			p.say("MASTER_ADDR", "127.0.0.1")
			p.say("MASTER_PORT", "1")
			p.say("torchelastic/role_info/2", "{}") // before the bridge goes on, as it looks once
			p.brings(1)
		}, "a member has left it before it began"},
		{"it leaves", "a", func(p *peer) {
			time.Sleep(2 * time.Second) // the bridge looks every second
			if _, err := p.until(p.ctx, c10d.WantExit, c10d.ActionFinish); err != nil {
				p.Error(err)
			}
		}, "node m_1_0 (group rank 1) has left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 1, 2, func(cr *crowd) {
				b, p := cr.group(nil, c.ours), cr.peer("m")
				var j c10d.Joined
				together(func() { j = b.mustJoin() }, func() { p.join(); c.lose(p) })
				if j.Round == 0 || j.GroupWorldSize != 1 || j.MasterPort != 100*int(c.ours[0]) {
					t.Errorf("joined %+v, want a later round alone", j)
				}
				if log := cr.log.String(); !strings.Contains(log, c.says) {
					t.Errorf("nothing says %q:\n%s", c.says, log)
				}
			})
		})
	}
}

// TestBridgeTimeout has too few nodes: the error comes in time, and says who is there.
func TestBridgeTimeout(t *testing.T) {
	bubble(t, 4, 4, func(c *crowd) {
		b, p := c.group(nil, "a", "b"), c.peer("m")
		begin := time.Now()
		together(func() {
			_, err := b.join()
			if !errors.Is(err, c10d.ErrTimeout) || errhint.CodeOf(err) != errhint.TryAgain {
				t.Errorf("Join: %v, status %d", err, errhint.CodeOf(err))
			}
		}, func() {
			ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
			defer cancel()
			_, _ = p.until(ctx, c10d.WantJoin, c10d.ActionFinish)
			if got, want := b.Progress(), "round 0: 3 nodes joined (a, b, m); waiting for 1 more"; got != want {
				t.Errorf("progress is %q, want %q", got, want)
			}
		})
		if d := time.Since(begin); d < c.set.JoinTimeout || d > c.set.JoinTimeout+10*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestBridgeBarrier ends rounds while ours are in the exit barrier.
func TestBridgeBarrier(t *testing.T) {
	const members, passed = "torchelastic/agent/terminal_state/num_members", "torchelastic/agent/terminal_state/last_member"
	for _, c := range []struct {
		name string
		do   func(p *peer)
		want string // of the error
	}{
		{"all have succeeded", func(p *peer) {
			time.Sleep(10 * time.Minute)
			if n, err := p.store.Add(p.ctx, p.key(members), 1); n != 3 || err != nil {
				t.Errorf("%d are in the barrier, %v", n, err)
			}
			p.say(passed, "x")
		}, ""},
		{"a worker of theirs fails", func(p *peer) {
			time.Sleep(10 * time.Minute)
			p.stop()
			if _, err := p.until(p.ctx, c10d.WantExit, c10d.ActionFinish); err != nil {
				t.Error(err)
			}
		}, "round 0 is over: node m_1_0 (group rank 2) has left"},
		{"they give up", func(p *peer) {
			time.Sleep(10 * time.Minute)
			p.stop()
			if _, err := p.until(p.ctx, c10d.WantClose, c10d.ActionFinish); err != nil {
				t.Error(err)
			}
		}, "the rendezvous is closed"},
		{"they have passed and closed it", func(p *peer) {
			if _, err := p.store.Add(p.ctx, p.key(members), 1); err != nil {
				t.Error(err)
			}
			p.say(passed, "x")
			p.stop()
			if _, err := p.until(p.ctx, c10d.WantClose, c10d.ActionFinish); err != nil {
				t.Error(err)
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 3, 3, func(cr *crowd) {
				b, p := cr.group(nil, "a", "b"), cr.peer("m")
				together(func() { b.mustJoin() }, func() { p.join(); p.brings(1) })
				p.live()
				var err error
				together(func() { err = b.Barrier(cr.ctx, b.who, b.changed) }, func() {
					time.Sleep(time.Minute)
					if got, want := b.Progress(), "all workers here have succeeded; waiting for those of 1 node of torchrun"; got != want &&
						c.name != "they have passed and closed it" {
						t.Errorf("progress is %q, want %q", got, want)
					}
					c.do(p)
				})
				p.stop()
				if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
					t.Errorf("Barrier: %v, want %q", err, c.want)
				}
				if over, ok := errors.AsType[*c10d.RoundOverError](err); ok && over.Round != 0 {
					t.Errorf("round %d is over", over.Round)
				}
			})
		})
	}
}

// TestBridgeExcuses shows whose silence ends a round: an agent of torchrun does not keep alive in the exit barrier.
func TestBridgeExcuses(t *testing.T) {
	for name, in := range map[string]int64{"in the barrier": 1, "nowhere": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, 2, func(c *crowd) {
				b, p := c.group(nil, "a"), c.peer("m")
				together(func() { b.mustJoin() }, func() { p.join(); p.brings(1) })
				if _, err := c.store.Add(c.ctx, p.key("torchelastic/agent/terminal_state/num_members"), in); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeoutCause(c.ctx, 10*time.Minute, errors.New("time is up"))
				defer cancel()
				why, err := b.Stay(ctx, b.who, nil)
				if in == 1 && (err == nil || !strings.HasSuffix(err.Error(), "time is up")) || in == 0 &&
					why != "node m_1_0 (group rank 1) is not heard of for 15s" {
					t.Errorf("Stay: %q, %v", why, err)
				}
			})
		})
	}
}

// TestBridgeClosed lets a peer close the rendezvous in the middle of a round: its workers have failed for good.
func TestBridgeClosed(t *testing.T) {
	bubble(t, 2, 2, func(c *crowd) {
		b, spare, p := c.group(nil, "a"), c.group(nil, "s"), c.peer("m")
		together(func() { b.mustJoin() }, func() { p.join(); p.brings(1) })
		p.live()
		together(func() {
			why, err := b.stay()
			if !errors.Is(err, c10d.ErrClosed) || !strings.HasPrefix(why, "an agent of torchrun has closed the rendezvous") {
				t.Errorf("Stay: %q, %v", why, err)
			}
		}, func() {
			if _, err := spare.join(); !errors.Is(err, c10d.ErrSpared) {
				t.Errorf("a spare's Join: %v", err)
			}
		}, func() {
			time.Sleep(time.Minute)
			if got, want := spare.Progress(), "round 0 runs with 2 nodes (a, m); waiting for it to end"; got != want {
				t.Errorf("the spare's progress is %q, want %q", got, want)
			}
			p.stop()
			if _, err := p.until(c.ctx, c10d.WantClose, c10d.ActionFinish); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestBridgeClocks tells of each clock that differs, once.
func TestBridgeClocks(t *testing.T) {
	bubble(t, 2, 2, func(c *crowd) {
		b := c.group(nil, "a")
		other := c.group(func(cfg *c10d.BridgeConfig) { cfg.ClockOffset = time.Minute }, "m")
		together(func() { b.mustJoin() }, func() { other.mustJoin() })
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Minute)
		defer cancel()
		together(func() { _, _ = b.Stay(ctx, b.who, nil) }, func() { _, _ = other.Stay(ctx, other.who, nil) })
		var warnings []map[string]any
		for line := range strings.Lines(c.log.String()) {
			m := map[string]any{}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			if m["level"] == "warn" {
				warnings = append(warnings, m)
			}
		}
		if len(warnings) != 1 || warnings[0]["node"] != "m_1_0" || warnings[0]["ahead_ms"].(float64) < 59000 ||
			warnings[0]["ahead_ms"].(float64) > 60000 {
			t.Errorf("warnings: %v", warnings)
		}
	})
}

// TestBridgeEnds shows that every method ends with its context, with the store, and that the state may be lost.
func TestBridgeEnds(t *testing.T) {
	cause := errors.New("enough")
	soon := func(c *crowd) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(c.ctx, time.Minute, cause)
	}
	bubble(t, 2, 2, func(c *crowd) {
		b, p := c.group(nil, "a"), c.peer("m")
		ctx, cancel := soon(c)
		defer cancel()
		if err := b.Appeared(ctx); !errors.Is(err, cause) {
			t.Errorf("Appeared: %v", err)
		}
		ctx, cancel2 := soon(c)
		defer cancel2()
		if _, err := b.Join(ctx, b.who, nil, b.master); !errors.Is(err, cause) {
			t.Errorf("Join: %v", err)
		}
		leave := func() {
			t.Helper()
			if err := b.Leave(c.ctx); err != nil {
				t.Error(err)
			}
		}
		leave()
		if _, err := b.stay(); err == nil {
			t.Error("Stay without a round")
		}
		if err := b.Hold(c.ctx, b.who); err == nil {
			t.Error("Hold without a round")
		}
		if err := b.Barrier(c.ctx, b.who, nil); err == nil {
			t.Error("Barrier without a round")
		}
		// In the exchange, then with the caller's own error.
		together(func() {
			ctx, cancel := soon(c)
			defer cancel()
			if _, err := b.Join(ctx, b.who, nil, b.master); !errors.Is(err, cause) {
				t.Errorf("Join in the exchange: %v", err)
			}
		}, func() { p.join(); p.live(); time.Sleep(2 * time.Minute); p.stop() })
		leave()
		together(func() {
			_, err := b.Join(c.ctx, b.who, nil, func(context.Context, c10d.Peer, bool) (string, int, error) { return "", 0, cause })
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), "cannot have the workers meet at node a_1_0") {
				t.Errorf("Join with a master that fails: %v", err)
			}
		}, p.join)
		leave()
		together(func() { b.mustJoin() }, func() { p.join(); p.brings(1) })
		p.live()
		ctx, cancel3 := soon(c)
		defer cancel3()
		if _, err := b.Stay(ctx, b.who, nil); !errors.Is(err, cause) {
			t.Errorf("Stay: %v", err)
		}
		ctx, cancel4 := soon(c)
		defer cancel4()
		if err := b.Barrier(ctx, b.who, nil); !errors.Is(err, cause) {
			t.Errorf("Barrier: %v", err)
		}
		before, err := c.store.Get(c.ctx, stateKey)
		if err != nil {
			t.Fatal(err)
		}
		p.stop()
		if _, err := c.store.Delete(c.ctx, stateKey); err != nil {
			t.Fatal(err)
		}
		if why, err := b.stay(); err != nil || !strings.HasSuffix(why, "is over") {
			t.Errorf("Stay without a state: %q, %v", why, err)
		}
		was, err := c10d.Decode(before)
		if err != nil {
			t.Fatal(err)
		}
		var j c10d.Joined
		together(func() { j = b.mustJoin() }, func() { p.join(); p.brings(1) })
		if j.Round != was.Round+1 {
			t.Errorf("joined round %d, the state that was lost had round %d", j.Round, was.Round)
		}
		if err := c.space.Close(); err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"Stay": func() error { _, err := b.stay(); return err }(), "Leave": b.Leave(c.ctx), "Close": b.Close(c.ctx),
			"Appeared": b.Appeared(c.ctx),
		} {
			if !errors.Is(err, rendezvous.ErrStoreClosed) {
				t.Errorf("%s after the end of the store: %v", name, err)
			}
		}
	})
}

// slow is a store that does not answer.
type slow struct{ rendezvous.Store }

func (slow) CompareAndSet(ctx context.Context, _ string, _, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestBridgeStoreHangs bounds each call.
func TestBridgeStoreHangs(t *testing.T) {
	bubble(t, 1, 1, func(c *crowd) {
		b := c.group(func(cfg *c10d.BridgeConfig) { cfg.Store, cfg.ReadTimeout = slow{cfg.Store}, 7*time.Second }, "a")
		begin := time.Now()
		if _, err := b.join(); err == nil || !strings.Contains(err.Error(), "the store has not answered for 7s") ||
			time.Since(begin) != 7*time.Second {
			t.Errorf("Join: %v after %v", err, time.Since(begin))
		}
	})
}

// TestNewBridge refuses what cannot be.
func TestNewBridge(t *testing.T) {
	for want, cfg := range map[string]c10d.BridgeConfig{
		"the run id is empty":                {Settings: c10d.DefaultSettings(1, 1)},
		"maximum number of nodes is 1":       {RunID: "job", Settings: c10d.DefaultSettings(2, 1)},
		"keep-alive interval is 0s, want mo": {RunID: "job", Settings: c10d.Settings{MinNodes: 1, MaxNodes: 1}},
	} {
		if _, err := c10d.NewBridge(cfg); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("NewBridge: %v, want %q", err, want)
		}
	}
	if _, err := c10d.NewBridge(c10d.BridgeConfig{RunID: "job", Settings: c10d.DefaultSettings(1, 1)}); err != nil {
		t.Error(err)
	}
}

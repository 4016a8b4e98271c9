package c10d_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous/c10d"
)

// TestBridges is the life of a job between two bridges, each of which takes the other's nodes for torchrun's.
func TestBridges(t *testing.T) {
	bubble(t, 3, 6, func(c *crowd) {
		one, two := c.group(nil, "b", "d"), c.group(nil, "a", "c", "e")
		two.peers[2].Role = "other"
		var j1, j2 c10d.Joined
		var err error
		together(func() {
			if err := one.Appeared(c.ctx); err != nil {
				t.Error(err)
			}
			j1 = one.mustJoin()
		}, func() { time.Sleep(time.Minute); j2 = two.mustJoin() })
		want := c10d.Joined{
			GroupWorldSize: 5, WorldSize: 9, MasterAddr: "127.0.0.1", MasterPort: 9700, AgentStore: true, Others: 3,
			Names: []string{"a", "b", "c", "d", "e"},
			Ranks: []c10d.Assignment{
				{Peer: one.peers[0], GroupRank: 1, BaseRank: 1, BaseRoleRank: 1, RoleWorldSize: 6},
				{Peer: one.peers[1], GroupRank: 3, BaseRank: 4, BaseRoleRank: 4, RoleWorldSize: 6},
			},
			Exit: []string{stateKey + ".0/torchelastic/agent/terminal_state/last_member"},
		}
		if diff := cmp.Diff(want, j1); diff != "" {
			t.Errorf("the first joined (-want +got):\n%s", diff)
		}
		want.Others, want.Ranks = 2, []c10d.Assignment{
			{Peer: two.peers[0], GroupRank: 0, BaseRank: 0, BaseRoleRank: 0, RoleWorldSize: 6},
			{Peer: two.peers[1], GroupRank: 2, BaseRank: 2, BaseRoleRank: 2, RoleWorldSize: 6},
			{Peer: two.peers[2], GroupRank: 4, BaseRank: 6, BaseRoleRank: 0, RoleWorldSize: 3},
		}
		if diff := cmp.Diff(want, j2); diff != "" {
			t.Errorf("the second joined (-want +got):\n%s", diff)
		}

		// A node more, and one less, end the round for both.
		var why1, why2 string
		together(func() { why1, err = one.stay() }, func() {
			hour, cancel := context.WithTimeout(c.ctx, time.Hour)
			defer cancel()
			if why, err := two.Stay(hour, two.who, two.changed); err == nil {
				t.Errorf("the round is over too soon: %s", why)
			}
			two.peers = append(two.peers[0:2:2], c10d.Peer{Node: named("0"), Role: "default", LocalWorldSize: 1})
			two.changed <- struct{}{}
			why2, _ = two.stay()
			hold, cancel := context.WithTimeout(c.ctx, time.Minute)
			defer cancel()
			if err := two.Hold(hold, two.who); err != nil {
				t.Error(err)
			}
		})
		if why1 != "node e_1_0 (group rank 4) has left" || why2 != why1 || err != nil {
			t.Errorf("the round is over because %q and %q, %v", why1, why2, err)
		}
		together(func() { j1 = one.mustJoin() }, func() { j2 = two.mustJoin() })
		if want := []string{"a", "b", "c", "d", "0"}; !slices.Equal(j1.Names, want) || !slices.Equal(j2.Names, want) || j1.Round != 1 {
			t.Errorf("joined round %d with %v, %v", j1.Round, j1.Names, j2.Names)
		}

		// All succeed, one group much later.
		together(func() {
			if err := one.Barrier(c.ctx, one.who, one.changed); err != nil {
				t.Error(err)
			}
			if err := one.Close(c.ctx); err != nil {
				t.Error(err)
			}
		}, func() {
			stay, cancel := context.WithTimeoutCause(c.ctx, 20*time.Minute, errors.New("time is up"))
			defer cancel()
			if why, err := two.Stay(stay, two.who, two.changed); err == nil || !strings.HasSuffix(err.Error(), "time is up") {
				t.Errorf("with others in the barrier the round ends: %q, %v", why, err)
			}
			if err := two.Barrier(c.ctx, two.who, two.changed); err != nil {
				t.Error(err)
			}
		})
		if err := two.Close(c.ctx); err != nil {
			t.Error(err)
		}
		if _, err := two.join(); !errors.Is(err, c10d.ErrClosed) || !strings.Contains(errhint.Of(err), "choose another --rdzv-id") {
			t.Errorf("join after the end: %v (%s)", err, errhint.Of(err))
		}
		if err := one.Leave(c.ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestBridgeManyNodes lets 4,000 nodes of ours meet 2 of others, end the round and meet again.
func TestBridgeManyNodes(t *testing.T) {
	testutil.Long(t)
	bubble(t, 4002, 4002, func(c *crowd) {
		var names []string
		for i := range 4000 {
			names = append(names, fmt.Sprintf("node%04d", i))
		}
		many, few := c.group(nil, names...), c.group(nil, "a", "z")
		for i := range many.peers {
			many.peers[i].LocalWorldSize = 8
		}
		for round := range 2 {
			var j, k c10d.Joined
			together(func() { j = many.mustJoin() }, func() { k = few.mustJoin() })
			if j.Round != round || j.WorldSize != 32003 || len(j.Ranks) != 4000 || j.Ranks[3999].BaseRank != 1+8*3999 {
				t.Errorf("joined round %d of %d workers with %d ranks", j.Round, j.WorldSize, len(j.Ranks))
			}
			if k.WorldSize != 32003 || k.Ranks[1].BaseRank != 32001 {
				t.Errorf("the few joined %+v", k.Ranks)
			}
		}
		together(func() {
			if err := many.Barrier(c.ctx, many.who, nil); err != nil {
				t.Error(err)
			}
		}, func() {
			if err := few.Barrier(c.ctx, few.who, nil); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestBridgeForeignState lets something else stand where the state should.
func TestBridgeForeignState(t *testing.T) {
	testutil.Long(t)
	deep := "\x80\x04" + strings.Repeat("\x5d\x28", 1<<20)
	for name, c := range map[string]struct{ text, want string }{
		"another program": {
			"hello, world",
			`holds 12 bytes that no agent of a rendezvous writes ("hello, world"): cannot read rendezvous state: illegal base64`,
		},
		"empty": {" ", "holds 1 bytes"},
		"poisoned pickle": {
			base64.StdEncoding.EncodeToString([]byte("\x80\x04cos\nsystem\n\x8c\x02id\x85R.")),
			`global "os.system" is not allowed`,
		},
		"nested too deep":   {base64.StdEncoding.EncodeToString([]byte(deep)), "holds 2796208 bytes"},
		"too long":          {strings.Repeat("A", 8<<20), "holds 8388608 bytes"},
		"another pickle":    {base64.StdEncoding.EncodeToString([]byte("\x80\x04K\x01.")), "it is an int"},
		"a broken pickle":   {base64.StdEncoding.EncodeToString([]byte("\x80\x04")), "holds 4 bytes"},
		"ranks given twice": {"gARjdG9yY2g=", "holds 12 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, 2, func(c2 *crowd) {
				if err := c2.store.Set(c2.ctx, stateKey, []byte(c.text)); err != nil {
					t.Fatal(err)
				}
				b := c2.group(nil, "b")
				_, err := b.join()
				if err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), `key "/torch.rendezvous.job" of the store`) {
					t.Errorf("Join: %v", err)
				}
				if err != nil && len(err.Error()) > 500 {
					t.Errorf("the error has %d bytes", len(err.Error()))
				}
				if hint := errhint.Of(err); !strings.Contains(hint, "choose another --rdzv-id or another port") {
					t.Errorf("hint: %q", hint)
				}
				if err := b.Close(c2.ctx); err == nil {
					t.Error("Close without error")
				}
				if now, err := c2.store.Get(c2.ctx, stateKey); err != nil || string(now) != c.text {
					t.Errorf("the foreign value was changed to %.50q, %v", now, err)
				}
			})
		})
	}
}

// TestBridgeNonsense lets the others say what cannot be in the keys of a round.
func TestBridgeNonsense(t *testing.T) {
	for _, c := range []struct {
		name string
		ours string // our node: the peer is m, so a is rank 0 and z is not
		say  map[string]string
		key  string
	}{
		{"no JSON", "a", map[string]string{"torchelastic/role_info/1": "{"}, "role_info/1"},
		{"no workers", "a", map[string]string{"torchelastic/role_info/1": `{"local_world_size": 0}`}, "role_info/1"},
		{"absurdly many", "a", map[string]string{"torchelastic/role_info/1": `{"local_world_size": 9000000000}`}, "role_info/1"},
		{"another type", "a", map[string]string{"torchelastic/role_info/1": `[1]`}, "role_info/1"},
		{"no port", "z", map[string]string{"MASTER_ADDR": "h", "MASTER_PORT": "http", "torchelastic/role_info/0": "{}"}, "MASTER_PORT"},
		{"port 0", "z", map[string]string{"MASTER_ADDR": "h", "MASTER_PORT": "0", "torchelastic/role_info/0": "{}"}, "MASTER_PORT"},
		{"no address", "z", map[string]string{"MASTER_ADDR": "a b\n", "MASTER_PORT": "1", "torchelastic/role_info/0": "{}"}, "MASTER_ADDR"},
		{"ranks beyond the world", "z", map[string]string{
			"MASTER_ADDR": "h", "MASTER_PORT": "1", "torchelastic/role_info/0": "{}",
			"torchelastic/assigned_ranks/1": "[2, 2, 0, 1]",
		}, "assigned_ranks/1"},
		{"three numbers", "z", map[string]string{
			"MASTER_ADDR": "h", "MASTER_PORT": "1", "torchelastic/role_info/0": "{}",
			"torchelastic/assigned_ranks/1": "[1, 2, 0]",
		}, "assigned_ranks/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 2, 2, func(cr *crowd) {
				b, p := cr.group(nil, c.ours), cr.peer("m")
				together(func() {
					_, err := b.join()
					if err == nil || !strings.Contains(err.Error(), "cannot use what key") || !strings.Contains(err.Error(), c.key) {
						t.Errorf("Join: %v", err)
					}
				}, func() {
					p.join()
					for _, key := range slices.Sorted(maps.Keys(c.say)) { // role_info comes last, as it does from torchrun
						p.say(key, c.say[key])
					}
				})
			})
		})
	}
}

// TestBridgeSaysAgain joins a round whose rank 0, as torchrun from 2.6 on, does not say again where the workers meet.
func TestBridgeSaysAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		earlier map[int]string // round: address
	}{
		{"the last round", map[int]string{1: "127.0.0.1", 2: "127.0.0.2"}},
		{"an earlier one", map[int]string{1: "127.0.0.2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 2, 2, func(cr *crowd) {
				b, p := cr.group(nil, "z"), cr.peer("m")
				s := c10d.NewState()
				s.Round = 3
				text, err := c10d.Encode(s)
				if err != nil {
					t.Fatal(err)
				}
				if err := cr.store.Set(cr.ctx, stateKey, text); err != nil {
					t.Fatal(err)
				}
				for round, addr := range c.earlier {
					p.round.Number = round
					p.say("MASTER_ADDR", addr)
					p.say("MASTER_PORT", "4711")
				}
				var j c10d.Joined
				together(func() { j = b.mustJoin() }, func() {
					p.join()
					p.brings(2)
					if got := p.hear("MASTER_ADDR") + p.hear("MASTER_PORT"); got != "127.0.0.24711" { // as a newcomer would
						t.Errorf("the round's address is %q", got)
					}
					p.hear("torchelastic/role_info/1")
					p.say("torchelastic/assigned_ranks/1", "[2, 3, 2, 3]")
				})
				if j.MasterAddr != "127.0.0.2" || j.MasterPort != 4711 || j.Ranks[0].BaseRank != 2 || j.WorldSize != 3 {
					t.Errorf("joined %+v", j)
				}
			})
		})
	}
}

// TestBridgeKeepsOurStore gives rank 0 to another node of ours, as an agent of torchrun may do that completes a round:
// the workers still meet at the store of the node that had it before.
func TestBridgeKeepsOurStore(t *testing.T) {
	bubble(t, 3, 3, func(c *crowd) {
		b, p := c.group(nil, "a", "b"), c.peer("m")
		var first, second c10d.Joined
		together(func() { first = b.mustJoin() }, func() { p.join(); p.brings(1) })
		together(func() { second = b.mustJoin() }, func() {
			for {
				time.Sleep(10 * time.Millisecond)
				text, err := c.store.Get(c.ctx, stateKey)
				if err != nil {
					t.Error(err)
					return
				}
				s, err := c10d.Decode(text)
				if err != nil {
					t.Error(err)
					return
				}
				if _, in := s.Participants[named("a")]; in {
					continue
				}
				s.Round, s.Complete, s.Participants = 1, true, map[c10d.Node]int{named("b"): 0, named("m"): 1, named("a"): 2}
				s.WaitList = c10d.Nodes{}
				for n := range s.Participants {
					s.LastHeartbeats[n] = time.Now()
				}
				changed, err := c10d.Encode(s)
				if err != nil {
					t.Error(err)
					return
				}
				if now, err := c.store.CompareAndSet(c.ctx, stateKey, text, changed); err == nil && string(now) == string(changed) {
					break
				}
			}
			p.round = c10d.Round{Number: 1, Rank: 1}
			p.brings(1)
		})
		if second.Names[0] != "b" || second.MasterPort != first.MasterPort || first.MasterPort != 9700 {
			t.Errorf("joined %+v, then %+v", first, second)
		}
	})
}

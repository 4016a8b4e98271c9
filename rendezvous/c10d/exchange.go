package c10d

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

// Keys of a round, after its prefix (c10d.md §3.3 to §3.6; read in 2.15.0 and 1.13.1, and run with both).
const (
	keyMasterAddr = "MASTER_ADDR"
	keyMasterPort = "MASTER_PORT"
	keyRole       = "torchelastic/role_info/"
	keyRanks      = "torchelastic/assigned_ranks/"
	keyBarrier    = "torchelastic/agent/terminal_state/num_members"
	keyPassed     = "torchelastic/agent/terminal_state/last_member"
	// The family 1.13 to 2.3.
	keyOldRole    = "torchelastic/role_info"
	keyOldBarrier = "torchelastic/agent/terminal_state"
	fin           = ".FIN"
)

// maxWorkers bounds what another agent may say of its workers, so that sums stay numbers.
const maxWorkers = 1 << 20

// master is where the workers of a round meet.
type master struct {
	addr string
	port int
}

// ownMaster is what a Master returned last, and for which node.
type ownMaster struct {
	master
	node Node
}

func (m master) String() string { return net.JoinHostPort(m.addr, strconv.Itoa(m.port)) }

// roleInfo is what an agent says of its workers: _RoleInstanceInfo upstream.
type roleInfo struct {
	Role           string `json:"role"`
	Rank           int    `json:"rank"`
	LocalWorldSize int    `json:"local_world_size"`
}

// waitFor says what the exchange waits for.
type waitFor struct {
	node  Node
	rank  int
	what  string
	owes  bool // whether the node has nothing to wait for itself before it says that
	since time.Time
}

// exchange is what all agents of one round tell each other before they start their workers. It runs beside the
// keep-alive and shares nothing with it but waits.
type exchange struct {
	log        zerolog.Logger
	store      rendezvous.Store
	timeout    time.Duration
	round      *round
	where      Master
	before     master // of the round before, zero where we do not know it
	own        ownMaster
	prefix     func(round int) string
	rendezvous string // key of the state

	waits  atomic.Pointer[waitFor]
	master master
	joined Joined
}

func (x *exchange) run(ctx context.Context) error {
	r := x.round
	x.joined = Joined{
		Round: r.Number, GroupWorldSize: len(r.order), AgentStore: !r.legacy, Others: r.others(), Names: make([]string, len(r.order)),
		Exit: r.exit(),
	}
	for rank, n := range r.order {
		x.joined.Names[rank] = n.Addr
	}
	var err error
	if r.legacy {
		err = x.legacy(ctx)
	} else {
		err = x.modern(ctx)
	}
	x.joined.MasterAddr, x.joined.MasterPort = x.master.addr, x.master.port
	return err
}

// modern is the order of 2.4 and newer: where the workers meet, then who brings what.
func (x *exchange) modern(ctx context.Context) error {
	first, ours := x.round.peers[x.round.order[0]]
	if !ours {
		return x.follow(ctx)
	}
	if err := x.chooseMaster(ctx, first); err != nil {
		return err
	}
	if err := x.publishMaster(ctx); err != nil {
		return err
	}
	if err := x.say(ctx, keyRole, ""); err != nil {
		return err
	}
	infos, err := x.hear(ctx, keyRole)
	if err != nil {
		return err
	}
	var pairs []rendezvous.Pair
	for rank, a := range x.assign(infos) {
		if _, ours := x.round.peers[x.round.order[rank]]; !ours {
			value, err := json.Marshal([]int{a.BaseRank, x.joined.WorldSize, a.BaseRoleRank, a.RoleWorldSize})
			if err != nil {
				return err
			}
			pairs = append(pairs, rendezvous.Pair{Key: x.round.key(keyRanks, rank), Value: value})
		}
	}
	return x.setAll(ctx, pairs)
}

// follow is a round whose rank 0 is an agent of torchrun: it says where the workers meet, and gives the ranks.
func (x *exchange) follow(ctx context.Context) error {
	// An agent that serves the store since an earlier round says nothing of it any more. It always says what it brings,
	// and that after the address (§3.3 rule 3).
	x.waiting(0, "what it brings", true)
	if err := x.within(ctx, func(ctx context.Context) error { return x.store.Wait(ctx, x.round.key(keyRole, 0)) }); err != nil {
		return err
	}
	if err := x.findMaster(ctx); err != nil {
		return err
	}
	// Whoever completed this round counted itself among its members and told nobody how many there are: if the one with
	// the highest rank is gone when we look, it is missed only here.
	more, err := x.has(ctx, x.round.key(keyRole, len(x.round.order)))
	if err != nil {
		return err
	}
	if more {
		return x.over("a member has left it before it began")
	}
	if err := x.say(ctx, keyRole, ""); err != nil {
		return err
	}
	x.waiting(0, "the ranks", false)
	for rank, n := range x.round.order {
		f, ours := x.round.peers[n]
		if !ours {
			continue
		}
		text, err := x.get(ctx, x.round.key(keyRanks, rank))
		if err != nil {
			return err
		}
		var v []int
		if err := json.Unmarshal(text, &v); err != nil || len(v) != 4 || !fits(v, f.LocalWorldSize) {
			return x.nonsense(x.round.key(keyRanks, rank), text)
		}
		if x.joined.WorldSize > 0 && x.joined.WorldSize != v[1] {
			return x.nonsense(x.round.key(keyRanks, rank), text)
		}
		x.joined.WorldSize = v[1]
		x.joined.Ranks = append(x.joined.Ranks,
			Assignment{Peer: f, GroupRank: rank, BaseRank: v[0], BaseRoleRank: v[2], RoleWorldSize: v[3]})
	}
	return nil
}

// fits reports whether assigned ranks are possible for an agent of n workers.
func fits(v []int, n int) bool {
	return v[0] >= 0 && v[0] <= v[1]-n && v[2] >= 0 && v[2] <= v[3]-n && v[3] <= v[1] && v[1] <= math.MaxInt32
}

// legacy is the order of 1.13 to 2.3: who brings what, of which everybody computes the ranks, then where the workers
// meet.
func (x *exchange) legacy(ctx context.Context) error {
	if err := x.say(ctx, keyOldRole, ""); err != nil {
		return err
	}
	infos, err := x.hear(ctx, keyOldRole)
	if err != nil {
		return err
	}
	x.assign(infos)
	if err := x.say(ctx, keyOldRole, fin); err != nil {
		return err
	}
	if first, ours := x.round.peers[x.round.order[0]]; ours {
		if err := x.askMaster(ctx, first, false); err != nil {
			return err
		}
		x.master = x.own.master
		return x.publishMaster(ctx)
	}
	x.waiting(0, "where the workers meet", false)
	x.master, err = x.readMaster(ctx, x.round.prefix)
	return err
}

// say publishes what each of ours brings, or with end that we have read what the others bring.
func (x *exchange) say(ctx context.Context, key, end string) error {
	var pairs []rendezvous.Pair
	for rank, n := range x.round.order {
		f, ours := x.round.peers[n]
		if !ours {
			continue
		}
		value := []byte("FIN")
		if end == "" {
			var err error
			if value, err = json.Marshal(roleInfo{f.Role, rank, f.LocalWorldSize}); err != nil {
				return err
			}
		}
		pairs = append(pairs, rendezvous.Pair{Key: x.round.key(key, rank) + end, Value: value})
	}
	return x.setAll(ctx, pairs)
}

// hear returns what every agent brings, ours included, by rank.
func (x *exchange) hear(ctx context.Context, key string) ([]roleInfo, error) {
	infos := make([]roleInfo, len(x.round.order))
	for rank, n := range x.round.order {
		if f, ours := x.round.peers[n]; ours {
			infos[rank] = roleInfo{f.Role, rank, f.LocalWorldSize}
			continue
		}
		x.waiting(rank, "what it brings", true)
		text, err := x.get(ctx, x.round.key(key, rank))
		if err != nil {
			return nil, err
		}
		info := &infos[rank]
		if err := json.Unmarshal(text, info); err != nil || info.LocalWorldSize < 1 || info.LocalWorldSize > maxWorkers {
			return nil, x.nonsense(x.round.key(key, rank), text)
		}
	}
	return infos, nil
}

// assign gives the ranks, as upstream does: workers follow each other in the order of the agents, and so do those of
// one role. It returns what each agent gets.
func (x *exchange) assign(infos []roleInfo) []Assignment {
	all, roles, world := make([]Assignment, len(infos)), map[string]int{}, 0
	for rank, i := range infos {
		all[rank] = Assignment{GroupRank: rank, BaseRank: world, BaseRoleRank: roles[i.Role]}
		world += i.LocalWorldSize
		roles[i.Role] += i.LocalWorldSize
	}
	x.joined.WorldSize = world
	for rank, i := range infos {
		all[rank].RoleWorldSize = roles[i.Role]
		if f, ours := x.round.peers[x.round.order[rank]]; ours {
			all[rank].Peer = f
			x.joined.Ranks = append(x.joined.Ranks, all[rank])
		}
	}
	return all
}

func (x *exchange) waiting(rank int, what string, owes bool) {
	x.waits.Store(&waitFor{node: x.round.order[rank], rank: rank, what: what, owes: owes, since: time.Now()})
}

// within bounds a wait for another agent. One that takes too long ends the round, not the job.
func (x *exchange) within(ctx context.Context, f func(context.Context) error) error {
	late := errors.New("late")
	bounded, cancel := context.WithTimeoutCause(ctx, x.timeout, late)
	defer cancel()
	err := f(bounded)
	if err != nil && ctx.Err() == nil && context.Cause(bounded) == late { //nolint:errorlint // it is this very error or another timeout
		w := x.waits.Load()
		return x.over(fmt.Sprintf("node %s (group rank %d) has not said %s for %v", w.node, w.rank, w.what, x.timeout))
	}
	return err
}

func (x *exchange) over(reason string) error { return &RoundOverError{x.round.Number, reason} }

func (x *exchange) get(ctx context.Context, key string) (value []byte, err error) {
	err = x.within(ctx, func(ctx context.Context) error {
		value, err = x.store.Get(ctx, key)
		return err
	})
	return value, err
}

// has reports whether key exists.
func (x *exchange) has(ctx context.Context, key string) (bool, error) {
	ctx, cancel := answer(ctx, x.timeout)
	defer cancel()
	if c, ok := x.store.(rendezvous.Checker); ok {
		return c.Check(ctx, key)
	}
	probe := []byte("muster: is anything here?")
	value, err := x.store.CompareAndSet(ctx, key, probe, probe)
	return err == nil && !bytes.Equal(value, probe), err
}

// setAll stores pairs, in one request where the store has one.
func (x *exchange) setAll(ctx context.Context, pairs []rendezvous.Pair) error {
	if len(pairs) == 0 {
		return nil
	}
	ctx, cancel := answer(ctx, x.timeout)
	defer cancel()
	if batch, ok := x.store.(rendezvous.Batcher); ok {
		if err := batch.MultiSet(ctx, pairs...); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	for _, p := range pairs {
		if err := x.store.Set(ctx, p.Key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

// nonsense is the error for a key of the round that no agent has written.
func (x *exchange) nonsense(key string, text []byte) error {
	return fmt.Errorf("cannot use what key %q of the store says: %.100q is not what an agent of torchrun writes there", key, text)
}

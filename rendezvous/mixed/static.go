package mixed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// StaticStore is the store at a static job's MASTER_ADDR:MASTER_PORT, which agents and workers of torchrun share.
type StaticStore interface {
	rendezvous.Store
	Check(ctx context.Context, keys ...string) (bool, error)
	ListKeys(ctx context.Context) ([]string, error)
}

// StaticConfig is what a Static needs.
type StaticConfig struct {
	Store StaticStore
	RunID string
	// Nodes is how many nodes the job has, ours and torchrun's.
	Nodes int
	// Addr and Port are where Store is, as the user wrote it: where all workers meet.
	Addr string
	Port int
	Log  zerolog.Logger
}

// Static is the membership.Bridge to torchrun's agents of a job with fixed node ranks. Those say what they bring, are
// told their ranks, and count themselves when they are done; they never look at each other. A restart is an agent's
// own: it says again what it brings and takes the ranks of before. So both are removed once a round has begun: then an
// agent that starts anew is noticed, and waits until the workers of all nodes have stopped and their keys are gone.
type Static struct {
	cfg    StaticConfig
	prefix string
	text   atomic.Pointer[string]
	others []int // node ranks of torchrun's agents in the round
	done   bool  // their workers have succeeded
	// barred says that no agent of torchrun can have started workers since the round: it found no ranks.
	barred bool
}

var _ membership.Bridge = (*Static)(nil)

const (
	staticPoll   = 250 * time.Millisecond
	staticScan   = 30 * time.Second       // how long we look for agents after one more client was counted
	ranksRead    = time.Second            // in which the others have read their ranks
	lastWords    = 500 * time.Millisecond // in which the others have noticed that all are done
	exitPatience = 5 * time.Minute        // torchrun's agents wait as long for each other at the end
	maxLocal     = 1 << 16                // workers that an agent may claim to bring
)

// NewStatic returns a bridge that has not touched the store yet.
func NewStatic(cfg StaticConfig) *Static {
	s := &Static{cfg: cfg, prefix: "/" + cfg.RunID + "/torchelastic/", barred: true}
	s.say("agents of torchrun take part")
	return s
}

// CountClient tells an agent of torchrun that hosts store that one of its clients has come: it waits for all nodes.
func CountClient(ctx context.Context, store rendezvous.Store) error {
	_, err := store.Add(ctx, "init/", 1)
	return err
}

func (s *Static) role(rank int) string  { return s.prefix + "role_info/" + strconv.Itoa(rank) }
func (s *Static) ranks(rank int) string { return s.prefix + "assigned_ranks/" + strconv.Itoa(rank) }
func (s *Static) oldRole(rank int) string {
	return s.prefix + "role_info" + strconv.Itoa(rank) // before 2.4
}
func (s *Static) say(text string) { s.text.Store(&text) }

// Progress implements membership.Bridge.
func (s *Static) Progress() string { return *s.text.Load() }

// pause waits for the next look.
func pause(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(staticPoll)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Appeared implements membership.Bridge. Every client of the store is counted when it comes, so we look for what agents
// say only then.
func (s *Static) Appeared(ctx context.Context) error {
	var until time.Time
	for counted := int64(-1); ; {
		n, err := s.cfg.Store.Add(ctx, "init/", 0)
		if err != nil {
			return err
		}
		if n != counted {
			counted, until = n, time.Now().Add(staticScan)
		}
		for rank := 0; rank < s.cfg.Nodes && time.Now().Before(until); rank++ {
			for _, key := range []string{s.role(rank), s.oldRole(rank)} {
				if there, err := s.cfg.Store.Check(ctx, key); err != nil || there {
					return err
				}
			}
		}
		if err := pause(ctx, nil); err != nil {
			return err
		}
	}
}

// brings is what an agent says of itself.
type brings struct {
	Role  string `json:"role"`
	Rank  int    `json:"rank"`
	Local int    `json:"local_world_size"`
}

// Join implements membership.Bridge. The place is the store's own, so master is not asked.
func (s *Static) Join(ctx context.Context, peers func() []membership.Peer, changed <-chan struct{},
	_ membership.Master,
) (j membership.Joined, err error) {
	var ours map[int]membership.Peer
	for {
		if ours, s.others, err = s.gather(ctx, peers()); err != nil {
			return j, err
		}
		if len(ours)+len(s.others) == s.cfg.Nodes {
			break
		}
		if err := pause(ctx, changed); err != nil {
			return j, err
		}
	}
	if s.barred {
		if err := s.sweep(ctx); err != nil {
			return j, err
		}
	}
	j = membership.Joined{
		Size: s.cfg.Nodes, Others: len(s.others), MasterAddr: s.cfg.Addr, MasterPort: s.cfg.Port, AgentStore: true,
		Names: make([]string, s.cfg.Nodes),
		Exit:  []string{s.passed()},
	}
	for rank := range j.Names {
		j.Names[rank] = cmp.Or(ours[rank].Addr, "torchrun")
	}
	if _, first := ours[0]; first {
		err = s.assign(ctx, ours, &j)
	} else {
		err = s.follow(ctx, ours, &j)
	}
	s.barred = false
	return j, err
}

// gather finds out which node ranks are ours, and which are those of agents of torchrun that are there.
func (s *Static) gather(ctx context.Context, peers []membership.Peer) (ours map[int]membership.Peer, others []int, err error) {
	ours = map[int]membership.Peer{}
	for _, f := range peers {
		if _, double := ours[f.NodeRank]; !double { // the later one is refused when the first one has shown that it lives
			ours[f.NodeRank] = f
		}
	}
	var missing, doubles []string
	for rank := range s.cfg.Nodes {
		there, err := s.cfg.Store.Check(ctx, s.role(rank))
		if err != nil {
			return nil, nil, err
		}
		f, is := ours[rank]
		switch {
		case is && there:
			doubles = append(doubles, fmt.Sprintf("node rank %d is that of an agent of torchrun and of node %s", rank, f.Addr))
		case there:
			others = append(others, rank)
		case !is:
			missing = append(missing, strconv.Itoa(rank))
			if old, err := s.cfg.Store.Check(ctx, s.oldRole(rank)); err != nil {
				return nil, nil, err
			} else if old {
				return nil, nil, ended(rendezvous.Fail, "PeerTooOld",
					fmt.Sprintf("node rank %d is an agent of a torchrun before 2.4, which cannot share a static job with muster", rank))
			}
		}
	}
	s.say(fmt.Sprintf("%d of %d nodes are there, %d of them agents of torchrun; missing: node rank %s", len(ours)+len(others), s.cfg.Nodes,
		len(others), strings.Join(missing, ", ")))
	if len(doubles) > 0 && len(ours) < s.cfg.Nodes {
		return nil, nil, ended(rendezvous.Fail, "NodeRankTaken", strings.Join(doubles, "; "))
	}
	return ours, others, nil
}

// sweep removes what workers of an earlier round left in the store, which has no other keys but the agents'.
func (s *Static) sweep(ctx context.Context) error {
	keys, err := s.cfg.Store.ListKeys(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // torchrun's store of 2.9 and older
	}
	for _, key := range keys {
		if err == nil && key != "init/" && !strings.HasPrefix(key, s.prefix) && !strings.HasPrefix(key, membership.KeyPrefix) {
			_, err = s.cfg.Store.Delete(ctx, key)
		}
	}
	return err
}

// assign gives the ranks: ours is rank 0.
func (s *Static) assign(ctx context.Context, ours map[int]membership.Peer, j *membership.Joined) error {
	infos, roles := make([]brings, s.cfg.Nodes), map[string]int{}
	for rank := range infos {
		if f, is := ours[rank]; is {
			infos[rank] = brings{Role: f.Role, Local: f.Workers}
		} else {
			text, err := s.cfg.Store.Get(ctx, s.role(rank))
			if err != nil {
				return err
			}
			if infos[rank], err = readBrings(text); err != nil {
				return fmt.Errorf("cannot use what key %q of the store says: %.100q is not what an agent of torchrun writes there",
					s.role(rank), text)
			}
		}
		j.World += infos[rank].Local
		roles[infos[rank].Role] += infos[rank].Local
	}
	base, roleBase := 0, map[string]int{}
	for rank, info := range infos {
		if f, is := ours[rank]; is {
			j.Places = append(j.Places, membership.Place{
				Agent: f.Agent, Rank: rank, BaseRank: base, BaseRoleRank: roleBase[info.Role],
				RoleWorldSize: roles[info.Role],
			})
		} else {
			value := fmt.Appendf(nil, "[%d, %d, %d, %d]", base, j.World, roleBase[info.Role], roles[info.Role])
			if err := s.cfg.Store.Set(ctx, s.ranks(rank), value); err != nil {
				return err
			}
		}
		base += info.Local
		roleBase[info.Role] += info.Local
	}
	return nil
}

// follow says what ours bring, and takes the ranks that torchrun's rank 0 gives them.
func (s *Static) follow(ctx context.Context, ours map[int]membership.Peer, j *membership.Joined) error {
	for rank, f := range ours {
		text, err := json.Marshal(brings{f.Role, rank, f.Workers})
		if err == nil {
			err = s.cfg.Store.Set(ctx, s.role(rank), text)
		}
		if err != nil {
			return err
		}
	}
	s.say("node rank 0, an agent of torchrun, is to give the ranks")
	for _, rank := range slices.Sorted(maps.Keys(ours)) {
		text, err := s.cfg.Store.Get(ctx, s.ranks(rank))
		if err != nil {
			return err
		}
		f := ours[rank]
		v, err := readRanks(text, f.Workers)
		if err != nil {
			return fmt.Errorf("cannot use what key %q of the store says: %.100q is not what an agent of torchrun writes there",
				s.ranks(rank), text)
		}
		j.World = v[1]
		j.Places = append(j.Places, membership.Place{Agent: f.Agent, Rank: rank, BaseRank: v[0], BaseRoleRank: v[2], RoleWorldSize: v[3]})
	}
	return nil
}

// errForeign is what comes of a text that no agent of torchrun writes.
var errForeign = errors.New("no agent of torchrun writes that")

// readBrings reads what an agent brings.
func readBrings(text []byte) (b brings, err error) {
	if err := json.Unmarshal(text, &b); err != nil || b.Local < 1 || b.Local > maxLocal {
		return brings{}, errForeign
	}
	return b, nil
}

// readRanks reads which ranks an agent of some workers gets: the first one and how many there are, then the same of its
// role.
func readRanks(text []byte, workers int) ([]int, error) {
	var v []int
	if err := json.Unmarshal(text, &v); err != nil || len(v) != 4 || v[1] > math.MaxInt32 || v[3] > v[1] ||
		v[0] < 0 || v[0] > v[1]-workers || v[2] < 0 || v[2] > v[3]-workers {
		return nil, errForeign
	}
	return v, nil
}

// forget removes what was said of every node under one of the two names.
func (s *Static) forget(ctx context.Context, key func(rank int) string) error {
	for rank := range s.cfg.Nodes {
		if _, err := s.cfg.Store.Delete(ctx, key(rank)); err != nil {
			return err
		}
	}
	return nil
}

// Stay implements membership.Bridge.
func (s *Static) Stay(ctx context.Context, _ func() []membership.Peer, _ <-chan struct{}) (string, error) {
	if err := s.forget(ctx, s.role); err != nil {
		return "", err
	}
	for began := time.Now(); ; {
		if reason, err := s.again(ctx); reason != "" || err != nil {
			return reason, err
		}
		if !s.barred && time.Since(began) > ranksRead {
			if err := s.forget(ctx, s.ranks); err != nil {
				return "", err
			}
			s.barred = true
		}
		if err := pause(ctx, nil); err != nil {
			return "", err
		}
	}
}

// again says which of torchrun's agents has begun anew, "" for none.
func (s *Static) again(ctx context.Context) (string, error) {
	for _, rank := range s.others {
		if there, err := s.cfg.Store.Check(ctx, s.role(rank)); err != nil || there {
			return fmt.Sprintf("the agent of torchrun with node rank %d starts its workers anew", rank), err
		}
	}
	return "", nil
}

// Hold implements membership.Bridge: these agents of torchrun do not ask whether others live.
func (s *Static) Hold(ctx context.Context, _ func() []membership.Peer) error {
	<-ctx.Done()
	return nil
}

// Barrier implements membership.Bridge: it waits until all others are in their exit barrier. Ours enter it by Close,
// with the verdict. An agent of torchrun that hosts the store leaves with the last one and takes it along: whoever of
// ours has not heard the verdict by then takes the key of Joined.Exit for it. Agents that fail never come: after five
// minutes, as theirs do, ours go without them.
func (s *Static) Barrier(ctx context.Context, _ func() []membership.Peer, _ <-chan struct{}) error {
	for began := time.Now(); ; {
		n, err := s.cfg.Store.Add(ctx, s.members(), 0)
		switch {
		case err != nil:
			return err
		case n >= int64(len(s.others)):
			s.done = true
			return nil
		case time.Since(began) > exitPatience:
			s.cfg.Log.Warn().Ints("node_ranks", s.others).Msg("agents of torchrun have not said that they are done; ours end without them")
			return nil
		}
		if reason, err := s.again(ctx); reason != "" || err != nil {
			return cmp.Or(err, errors.New(reason))
		}
		if err := pause(ctx, nil); err != nil {
			return err
		}
	}
}

func (s *Static) members() string { return s.prefix + "agent/terminal_state/num_members" }
func (s *Static) passed() string  { return s.prefix + "agent/terminal_state/last_member" }

// Close implements membership.Bridge. These agents of torchrun hear of nobody's failure.
func (s *Static) Close(ctx context.Context) error {
	if !s.done {
		return nil
	}
	_, err := s.cfg.Store.Add(ctx, s.members(), int64(s.cfg.Nodes-len(s.others)))
	if err == nil {
		err = s.cfg.Store.Set(ctx, s.passed(), []byte("<val_ignored>"))
	}
	if err == nil && !slices.Contains(s.others, 0) { // they have yet to read it at a store of ours
		select {
		case <-time.After(lastWords):
		case <-ctx.Done():
		}
	}
	return err
}

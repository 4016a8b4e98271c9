// Package mixed lets agents of torchrun take part in a membership: it is the membership.Bridge that speaks c10d.
package mixed

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/c10d"
	"muster/rendezvous/membership"
)

// Bridge is a membership.Bridge over the rendezvous of torchrun's agents.
type Bridge struct{ c10d *c10d.Bridge }

var _ membership.Bridge = (*Bridge)(nil)

// New returns a bridge that has not touched the store yet.
func New(cfg c10d.BridgeConfig) (*Bridge, error) {
	b, err := c10d.NewBridge(cfg)
	if err != nil {
		return nil, err
	}
	return &Bridge{b}, nil
}

// Appeared implements membership.Bridge.
func (b *Bridge) Appeared(ctx context.Context) error { return b.c10d.Appeared(ctx) }

// Join implements membership.Bridge.
func (b *Bridge) Join(ctx context.Context, peers func() []membership.Peer, changed <-chan struct{},
	master membership.Master,
) (membership.Joined, error) {
	var mu sync.Mutex // the peers are asked for while the master is found
	agents := map[c10d.Node]string{}
	ask := func() []c10d.Peer {
		now := peers()
		mu.Lock()
		defer mu.Unlock()
		for _, f := range now {
			agents[node(f)] = f.Agent
		}
		return translate(now)
	}
	j, err := b.c10d.Join(ctx, ask, changed, func(ctx context.Context, f c10d.Peer, served bool) (string, int, error) {
		mu.Lock()
		agent := agents[f.Node]
		mu.Unlock()
		return master(ctx, agent, served)
	})
	if err != nil {
		return membership.Joined{}, over(err)
	}
	joined := membership.Joined{
		Size: j.GroupWorldSize, World: j.WorldSize, Others: j.Others, MasterAddr: j.MasterAddr, MasterPort: j.MasterPort,
		AgentStore: j.AgentStore, Names: j.Names, Exit: j.Exit,
	}
	for _, a := range j.Ranks {
		joined.Places = append(joined.Places, membership.Place{
			Agent: agents[a.Node], Rank: a.GroupRank, BaseRank: a.BaseRank, BaseRoleRank: a.BaseRoleRank, RoleWorldSize: a.RoleWorldSize,
		})
	}
	return joined, nil
}

// Stay implements membership.Bridge.
func (b *Bridge) Stay(ctx context.Context, peers func() []membership.Peer, changed <-chan struct{}) (string, error) {
	reason, err := b.c10d.Stay(ctx, asked(peers), changed)
	if errors.Is(err, c10d.ErrClosed) {
		return "", ended(rendezvous.Fail, "PeersFailed", reason)
	}
	return reason, over(err)
}

// Hold implements membership.Bridge.
func (b *Bridge) Hold(ctx context.Context, peers func() []membership.Peer) error {
	return b.c10d.Hold(ctx, asked(peers))
}

// Barrier implements membership.Bridge.
func (b *Bridge) Barrier(ctx context.Context, peers func() []membership.Peer, changed <-chan struct{}) error {
	return over(b.c10d.Barrier(ctx, asked(peers), changed))
}

// Close implements membership.Bridge.
func (b *Bridge) Close(ctx context.Context) error { return b.c10d.Close(ctx) }

// Progress implements membership.Bridge.
func (b *Bridge) Progress() string { return b.c10d.Progress() }

func asked(peers func() []membership.Peer) func() []c10d.Peer {
	return func() []c10d.Peer { return translate(peers()) }
}

func translate(peers []membership.Peer) []c10d.Peer {
	theirs := make([]c10d.Peer, len(peers))
	for i, f := range peers {
		theirs[i] = c10d.Peer{Node: node(f), Role: f.Role, LocalWorldSize: f.Workers}
	}
	return theirs
}

// node names an agent as torchrun's agents do. Its process id stands for the agent's own: all that matters is that no
// two agents of one address have the same.
func node(f membership.Peer) c10d.Node {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.Agent)) // a hash takes everything
	return c10d.Node{Addr: f.Addr, PID: int64(h.Sum32() &^ (1 << 31))}
}

// over turns the ends of a job that torchrun's agents know into ours.
func over(err error) error {
	switch {
	case errors.Is(err, c10d.ErrSpared):
		return ended(rendezvous.Succeed, "WorkersSucceeded", err.Error())
	case errors.Is(err, c10d.ErrClosed):
		return ended(rendezvous.Fail, "RendezvousClosed", "agents of torchrun have closed the rendezvous: the job of this run id is over")
	case errors.Is(err, c10d.ErrTimeout):
		return ended(rendezvous.Fail, "JoinTimeout", "no round came about with the agents of torchrun: "+err.Error())
	}
	return err
}

func ended(kind rendezvous.VerdictKind, reason, message string) error {
	v := rendezvous.Verdict{Kind: kind, Reason: reason, Message: message, Rank: -1}
	switch {
	case kind == rendezvous.Succeed:
	case reason == "PeersFailed":
		v.Status = 1
	default:
		v.Status = errhint.TryAgain
	}
	return &rendezvous.OverError{Verdict: v}
}

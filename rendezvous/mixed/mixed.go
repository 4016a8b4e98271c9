// Package mixed lets agents of torchrun take part in a rollcall: it is the rollcall.Bridge that speaks c10d.
package mixed

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"

	"muster/internal/errhint"
	"muster/rendezvous"
	"muster/rendezvous/c10d"
	"muster/rendezvous/rollcall"
)

// Bridge is a rollcall.Bridge over the rendezvous of torchrun's agents.
type Bridge struct{ c10d *c10d.Bridge }

var _ rollcall.Bridge = (*Bridge)(nil)

// New returns a bridge that has not touched the store yet.
func New(cfg c10d.BridgeConfig) (*Bridge, error) {
	b, err := c10d.NewBridge(cfg)
	if err != nil {
		return nil, err
	}
	return &Bridge{b}, nil
}

// Appeared implements rollcall.Bridge.
func (b *Bridge) Appeared(ctx context.Context) error { return b.c10d.Appeared(ctx) }

// Join implements rollcall.Bridge.
func (b *Bridge) Join(ctx context.Context, company func() []rollcall.Fellow, changed <-chan struct{}, master rollcall.Master) (rollcall.Joined, error) {
	var mu sync.Mutex // the company is asked for while the master is found
	agents := map[c10d.Node]string{}
	ask := func() []c10d.Fellow {
		now := company()
		mu.Lock()
		defer mu.Unlock()
		for _, f := range now {
			agents[node(f)] = f.Agent
		}
		return translate(now)
	}
	j, err := b.c10d.Join(ctx, ask, changed, func(ctx context.Context, f c10d.Fellow, served bool) (string, int, error) {
		mu.Lock()
		agent := agents[f.Node]
		mu.Unlock()
		return master(ctx, agent, served)
	})
	if err != nil {
		return rollcall.Joined{}, over(err)
	}
	joined := rollcall.Joined{
		Size: j.GroupWorldSize, World: j.WorldSize, Others: j.Others, MasterAddr: j.MasterAddr, MasterPort: j.MasterPort,
		AgentStore: j.AgentStore, Names: j.Names, Exit: j.Exit,
	}
	for _, a := range j.Ranks {
		joined.Places = append(joined.Places, rollcall.Place{
			Agent: agents[a.Node], Rank: a.GroupRank, BaseRank: a.BaseRank, BaseRoleRank: a.BaseRoleRank, RoleWorldSize: a.RoleWorldSize,
		})
	}
	return joined, nil
}

// Stay implements rollcall.Bridge.
func (b *Bridge) Stay(ctx context.Context, company func() []rollcall.Fellow, changed <-chan struct{}) (string, error) {
	reason, err := b.c10d.Stay(ctx, asked(company), changed)
	if errors.Is(err, c10d.ErrClosed) {
		return "", ended(rendezvous.Fail, "PeersFailed", reason)
	}
	return reason, over(err)
}

// Hold implements rollcall.Bridge.
func (b *Bridge) Hold(ctx context.Context, company func() []rollcall.Fellow) error {
	return b.c10d.Hold(ctx, asked(company))
}

// Barrier implements rollcall.Bridge.
func (b *Bridge) Barrier(ctx context.Context, company func() []rollcall.Fellow, changed <-chan struct{}) error {
	return over(b.c10d.Barrier(ctx, asked(company), changed))
}

// Close implements rollcall.Bridge.
func (b *Bridge) Close(ctx context.Context) error { return b.c10d.Close(ctx) }

// Progress implements rollcall.Bridge.
func (b *Bridge) Progress() string { return b.c10d.Progress() }

func asked(company func() []rollcall.Fellow) func() []c10d.Fellow {
	return func() []c10d.Fellow { return translate(company()) }
}

func translate(company []rollcall.Fellow) []c10d.Fellow {
	fellows := make([]c10d.Fellow, len(company))
	for i, f := range company {
		fellows[i] = c10d.Fellow{Node: node(f), Role: f.Role, LocalWorldSize: f.Workers}
	}
	return fellows
}

// node names an agent as torchrun's agents do. Its process id stands for the agent's own: all that matters is that no two
// agents of one address have the same.
func node(f rollcall.Fellow) c10d.Node {
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

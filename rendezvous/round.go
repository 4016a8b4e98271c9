// Package rendezvous is how agents meet: a Handler gives each agent the Round it takes part in, a Store is what they
// say to each other through. One node meets itself (Solo); the backends for several nodes live in sub-packages.
//
// The invariant of every Round: ranks are dense, each node's ranks are contiguous, and the key space that workers see
// under MASTER_ADDR:MASTER_PORT is empty when the round starts.
package rendezvous

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Round is one numbered attempt of a fixed set of agents to train together.
type Round struct {
	// Number counts the rounds of a job from 0.
	Number int
	// GroupRank is this agent's index among GroupWorldSize agents.
	GroupRank, GroupWorldSize int
	// BaseRank is the global rank of this agent's local rank 0, WorldSize the number of workers of all agents.
	BaseRank, WorldSize int
	// BaseRoleRank and RoleWorldSize say the same among the workers of this agent's role.
	BaseRoleRank, RoleWorldSize int
	// MasterAddr and MasterPort are where workers meet.
	MasterAddr string
	MasterPort int
	// AgentStore is true where an agent, not worker rank 0, serves MasterAddr:MasterPort.
	AgentStore bool
	// Restarts is how many restarts because of failures the job has had before this round, Replacements how many nodes
	// it has lost: the same numbers on every node.
	Restarts, Replacements int
	// Orders are what people want of the job, such as that workers are not started in this round.
	Orders Orders
	// HostRank is the group rank of the node that serves the store of the agents, LeadRank that of the coordinator; -1
	// where none of them does.
	HostRank, LeadRank int
	// HostLost is the host name of the node that served that store in the round before, where it takes no part any more
	// and has not said that it leaves; else empty.
	HostLost string
	// LossNotice is how long it takes at most until the handler says that a node was lost; 0 where there is no other.
	LossNotice time.Duration
	// Exchange is what the agents of this round tell each other.
	Exchange
}

// Member is what an agent brings into a round.
type Member struct {
	Role string
	// LocalWorldSize is the number of workers it will start, ≥ 1.
	LocalWorldSize int
}

// Handler gives an agent its rounds. One goroutine at a time calls its methods and those of the Round that Next
// returned last.
type Handler interface {
	// Next blocks until the next round is fixed and returns it. The workers of the round before must have ended, and
	// its Exchange is not used any more. It returns an *OverError when the job has ended without this agent, and
	// context.Cause(ctx) when ctx ends.
	Next(ctx context.Context, m Member) (Round, error)
	// Lease delivers until when the workers of this node may run, a later time as long as the other nodes hear of it:
	// they may begin a round without it soon after that. nil where it depends on nobody. Receiving is allowed at any
	// time.
	Lease() <-chan time.Time
	// Close leaves for good, and lets the others go first where they need this node. Rounds returned before are void
	// afterwards.
	Close() error
}

// Hurrier is a Handler whose Close can be cut short.
type Hurrier interface {
	Handler
	// Hurry has Close, now or later, wait for nobody: others lose what this node has for them. It may be called at any
	// time.
	Hurry()
}

// Exchange is what the agents of one round tell each other. It says nothing of other rounds.
type Exchange interface {
	// Verdict delivers the verdict on the round, once there is one. Some verdicts come from the handler itself: a node
	// was lost, another one came, the store does not answer.
	Verdict() <-chan Verdict
	// Propose says how the round is to end. Of all proposals of its agents and handlers the first one counts, and is
	// returned: v itself, or what somebody else said before. Where the store is out of reach the answer is a
	// Reassemble.
	Propose(ctx context.Context, v Verdict) (Verdict, error)
	// Tally says what has become of the workers of this agent, all of which have ended. It is called once in a round.
	Tally(ctx context.Context, t Tally) error
	// Tallied delivers the sum over the agents of the round, once each of them has called Tally, to one of them, who
	// decides; the others' channels stay silent, and so do all where something else ends the round.
	Tallied() <-chan Tally
	// Report leaves for the round's other agents what this one knows about failures on its node, nothing for none; it
	// is called once in a round, when the workers have ended, before Reports.
	Report(ctx context.Context, report []byte) error
	// Reports returns what the agents of the round have reported, in no order, its own included. It waits until each of
	// them has, or ctx ends; then what is there is returned without an error.
	Reports(ctx context.Context) ([][]byte, error)
	// Agree returns the value of whichever agent called it first in this round: all leave with the same.
	Agree(ctx context.Context, value []byte) ([]byte, error)
	// Board is what only the agents of the round share, empty when the round begins: there they tell each other what
	// must be known before workers start. nil where this node is alone, and where agents of torchrun take part, which
	// know nothing of it.
	Board() Board
}

// Board is where the agents of one round tell each other something. What Get returns was written by one of them, in
// this round, under this key: where the job has a token, nothing else is taken. The methods are safe for concurrent
// use, and end when ctx ends, with context.Cause(ctx).
type Board interface {
	// Set stores value under key.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until there is a value under key, and returns it.
	Get(ctx context.Context, key string) ([]byte, error)
}

// Noter is a Board that takes words which may get lost. Set sees to it that a word stays; who reads one of Note does
// without where it is gone.
type Noter interface {
	Board
	Note(ctx context.Context, key string, value []byte) error
}

// ErrUntrusted is wrapped by errors of a Board where something stands under a key that no agent of the job has written
// there. It says nothing of the node whose word is missing.
var ErrUntrusted = errors.New("not written by an agent of this job")

// Server is the store that a Solo handler offers to the workers.
type Server interface {
	// Port is where it listens.
	Port() int
	// Reset drops every connection and every key of the workers. What agents keep there for themselves stays.
	Reset()
	Close() error
}

// Counts are numbers of a Handler.
type Counts struct {
	// StoreOperations is how many requests the stores on this node have carried out, of workers and agents; nil: it has
	// none.
	StoreOperations *uint64
	// LostNodes is how many nodes this one, as coordinator, has taken for lost; nil: nobody can be lost.
	LostNodes *int64
}

// Counter is a Handler that counts. Counts may be called at any time, also after Close.
type Counter interface {
	Handler
	Counts() Counts
}

// CountStores adds up what servers have carried out that can tell it. Of one that is there twice it is counted once.
func CountStores(servers ...any) *uint64 {
	var sum *uint64
	for i, s := range servers {
		c, counts := s.(interface{ Operations() uint64 })
		if !counts || slices.Contains(servers[:i], s) {
			continue
		}
		n := c.Operations()
		if sum != nil {
			n += *sum
		}
		sum = &n
	}
	return sum
}

// Solo is the Handler of an agent that is alone: every round is complete at once.
type Solo struct {
	host   string
	server Server
	next   int
	orders Orders
}

// NewSolo returns a handler whose workers meet at host and server's port. It owns server from now on.
func NewSolo(host string, server Server) *Solo { return &Solo{host: host, server: server} }

// Counts implements Counter.
func (s *Solo) Counts() Counts { return Counts{StoreOperations: CountStores(s.server)} }

// Next returns the next round. From the second on it empties the server first: keys that workers of an earlier round
// left would send the new ones to addresses where nobody listens any more.
func (s *Solo) Next(_ context.Context, m Member) (Round, error) {
	if s.next > 0 {
		s.server.Reset()
	}
	r := Round{
		Number: s.next, GroupWorldSize: 1,
		WorldSize: m.LocalWorldSize, RoleWorldSize: m.LocalWorldSize,
		MasterAddr: s.host, MasterPort: s.server.Port(), AgentStore: true,
		Orders:   s.orders,
		Exchange: alone{s, make(chan Tally, 1)},
	}
	s.next++
	return r, nil
}

// Lease returns nil: nobody else goes on.
func (s *Solo) Lease() <-chan time.Time { return nil }

// Close closes the server.
func (s *Solo) Close() error { return s.server.Close() }

// alone is the Exchange of an agent that is alone: nobody else ends its rounds, or reads what it reports.
type alone struct {
	solo *Solo
	sum  chan Tally
}

// Propose implements Exchange. What is proposed counts.
func (a alone) Propose(_ context.Context, v Verdict) (Verdict, error) {
	a.solo.orders.Learn(v.Orders)
	return v, nil
}

func (alone) Verdict() <-chan Verdict                               { return nil }
func (a alone) Tally(_ context.Context, t Tally) error              { a.sum <- t; return nil }
func (a alone) Tallied() <-chan Tally                               { return a.sum }
func (alone) Report(context.Context, []byte) error                  { return nil }
func (alone) Reports(context.Context) ([][]byte, error)             { return nil, nil }
func (alone) Agree(_ context.Context, value []byte) ([]byte, error) { return value, nil }
func (alone) Board() Board                                          { return nil }

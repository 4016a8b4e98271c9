// Package rendezvous is how agents meet: a Handler gives each agent the Round it takes part in, a Store is what they
// say to each other through. One node meets itself (Solo); the backends for several nodes live in sub-packages.
//
// The invariant of every Round: ranks are dense, each node's ranks are contiguous, and the key space that workers see
// under MASTER_ADDR:MASTER_PORT is empty when the round starts.
package rendezvous

import "context"

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
}

// Member is what an agent brings into a round.
type Member struct {
	Role string
	// LocalWorldSize is the number of workers it will start, ≥ 1.
	LocalWorldSize int
}

// Handler gives an agent its rounds.
type Handler interface {
	// Next blocks until the next round is fixed and returns it. The workers of the round before must have ended.
	Next(ctx context.Context, m Member) (Round, error)
	// Close leaves for good. Rounds returned before are void afterwards.
	Close() error
}

// Server is the store that a Solo handler offers to the workers.
type Server interface {
	// Port is where it listens.
	Port() int
	// Reset drops every connection and every key.
	Reset()
	Close() error
}

// Solo is the Handler of an agent that is alone: every round is complete at once.
type Solo struct {
	host   string
	server Server
	next   int
}

// NewSolo returns a handler whose workers meet at host and server's port. It owns server from now on.
func NewSolo(host string, server Server) *Solo { return &Solo{host: host, server: server} }

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
	}
	s.next++
	return r, nil
}

// Close closes the server.
func (s *Solo) Close() error { return s.server.Close() }

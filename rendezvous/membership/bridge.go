package membership

import "context"

// Bridge lets agents of torchrun take part, who know nothing of its records: the coordinator speaks to them for all our
// nodes, the peers, which are asked for again whenever something is decided; a receive from changed says that it is
// another one. The methods are called one at a time, but for Progress; all end with ctx. A *rendezvous.OverError from
// them is the end of the job.
type Bridge interface {
	// Appeared returns once an agent of torchrun was at the store.
	Appeared(ctx context.Context) error
	// Join brings the peers into the next round and returns its places.
	Join(ctx context.Context, peers func() []Peer, changed <-chan struct{}, master Master) (Joined, error)
	// Stay keeps the peers in the round and returns why it is over.
	Stay(ctx context.Context, peers func() []Peer, changed <-chan struct{}) (reason string, err error)
	// Hold keeps the peers alive until ctx ends: while its workers stop.
	Hold(ctx context.Context, peers func() []Peer) error
	// Barrier is called when all workers of ours have succeeded, and returns when those of the others have, too.
	Barrier(ctx context.Context, peers func() []Peer, changed <-chan struct{}) error
	// Close ends the job for the others.
	Close(ctx context.Context) error
	// Progress says in one line how far a Join has come.
	Progress() string
}

// Master returns where the workers meet when the agent has group rank 0. With served its store is there, and empty;
// without, worker 0 will open one, and the port was free.
type Master func(ctx context.Context, agent string, served bool) (addr string, port int, err error)

// Peer is one of our nodes, as a Bridge needs it.
type Peer struct {
	Agent, Addr, Role string
	Workers           int
	NodeRank          int // the group rank that it must have, or -1
}

// Joined is the places of ours in a round with others.
type Joined struct {
	// Size and World count the nodes and the workers of everybody, Others the nodes that are not ours.
	Size, World, Others int
	MasterAddr          string
	MasterPort          int
	AgentStore          bool
	Places              []Place
	// Names are the addresses of all nodes by group rank.
	Names []string
	// Exit are keys of the store that all exist once the workers of everybody have succeeded: whoever hosts it may go
	// then.
	Exit []string
}

// Place is one node's place.
type Place struct {
	Agent                                       string
	Rank, BaseRank, BaseRoleRank, RoleWorldSize int
}

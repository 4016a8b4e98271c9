package rendezvous

import "context"

// Doorkeeper is a Handler that has nodes examined which wait to join while the others train, and remembers those that a
// check has excluded.
type Doorkeeper interface {
	Handler
	// AtDoor says how this node is examined. examine is called while Next waits, from another goroutine, and has
	// returned when Next returns; its ctx ends where a round begins for the node, or its company has changed. Its error
	// is why the node must not join: Next returns it, and the node has to leave.
	AtDoor(examine func(ctx context.Context, d Door) error)
	// Exclude takes in which nodes a check has excluded. Every agent of the check tells its handler; the one that leads
	// it says so, and its handler tells the job.
	Exclude(ctx context.Context, gone []Exclusion, leads bool) error
	// Remember has this node alone know which ones were excluded.
	Remember(gone []Exclusion)
	// RoundBoard is Board, also where this node is alone in the round: who waits to join reads there what it is
	// compared with.
	RoundBoard() Board
}

// Door is a check of nodes that are in no round.
type Door struct {
	// Round is the number of the round that may begin next, Rank this node's place among Size nodes.
	Round, Rank, Size int
	// Board is what only they share; nil for one that is alone.
	Board Board
	// Standard is what the nodes that train have written on the board of their round under StandardKey; nil for
	// nothing. It is at most MaxStandard bytes long.
	Standard []byte
}

// StandardKey is where a check says on the board of its round what newcomers are compared with, and MaxStandard how
// much of it they are told.
const (
	StandardKey = "standard"
	MaxStandard = 1024
)

// Exclusion is a node that a check has excluded.
type Exclusion struct {
	// Node is its name, IDs those of its accelerators; none where they have no ids of their own.
	Node string
	IDs  []string
	// Reason says why, for people.
	Reason string
}

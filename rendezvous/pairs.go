package rendezvous

import "context"

// PairKeeper is a Handler whose nodes may be tested in groups before a round, together with nodes of other agents: by a
// test of theirs, whose verdict their master finds.
type PairKeeper interface {
	Handler
	// AtPairs says how this node takes part. Next does so while it waits, and returns an *UnfitError where the node must
	// not join.
	AtPairs(p Pairs)
	// Paired reports whether the nodes of the round that Next returned last were tested so.
	Paired() bool
}

// Pairs is a node's part in such tests.
type Pairs struct {
	// Open starts what tests the devices of this node, one for each of its workers. An error means that it cannot.
	Open func(ctx context.Context) (PairTest, error)
	// Strict has stragglers leave. Perf has all nodes measured together once more, where they were found good.
	Strict, Perf bool
}

// PairTest tests the devices of this node with those of others.
type PairTest interface {
	// Test returns the time by which the nodes are compared.
	Test(ctx context.Context, g PairGroup) (took float64, err error)
	Close() error
}

// PairGroup is the devices that are tested together.
type PairGroup struct {
	// Store is the host:port where they meet, which the one with rank 0 serves.
	Store string
	// FirstRank is the rank of this node's first device among World.
	FirstRank, World int
}

// UnfitError is why a node must not join a round: such a test has found it so.
type UnfitError struct {
	Status int // with which it leaves
	Reason string
}

func (e *UnfitError) Error() string { return e.Reason }

package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

// Conn is a connection to the agents' store.
type Conn interface {
	rendezvous.Store
	Close() error
}

// Config says how an agent takes part.
type Config struct {
	lost *atomic.Int64 // nodes that its coordinator has taken for lost; made by New

	// RunID names the job. Agents with different ids never meet.
	RunID string
	// Min and Max bound the nodes of a round, 1 ≤ Min ≤ Max. Spares nodes are held ready while there are more than Min;
	// the number of nodes in a round is a multiple of Unit, ≥ 1.
	Min, Max, Spares, Unit int
	// Fixed says that every node comes with the group rank NodeRank that it must have, and that Max of them are needed;
	// otherwise NodeRank is -1.
	Fixed    bool
	NodeRank int
	// Prefers is one more than the group rank that this node would like to have where it is not Fixed; 0: any. It has
	// that rank unless another node has it already or wants the same, or fewer nodes take part.
	Prefers int
	// Wants is how many nodes the job is to have, by the word of whoever has started this one for that; 0: as many as it
	// has been told otherwise.
	Wants int
	// Node is this node's host name, Addr the address by which others reach it: MASTER_ADDR where it has rank 0.
	Node, Addr string
	// KeepAlive is the time between two heartbeats as the user counts them. A node is lost that was silent for Attempts
	// of them, less what it takes to notice: a new round begins within KeepAlive × Attempts.
	KeepAlive time.Duration
	Attempts  int
	// JoinTimeout bounds a meeting, CloseTimeout the good-byes. LastCall is how long a first round that could begin
	// waits for more nodes after the last one came, and how long a newcomer waits for others before a round ends for
	// it.
	JoinTimeout, CloseTimeout, LastCall time.Duration
	// ReplaceLimit bounds how many lost nodes lead to a new round, BackoffLimit those and restarts together; negative:
	// no limit. Those of the coordinator count.
	ReplaceLimit, BackoffLimit int
	// LossLimit is how many restarts and lost nodes together a job may have had when a node is lost; 0: no limit.
	LossLimit int
	// RankLimit bounds how often the node of each group rank may be replaced; 0: no limit. A round that goes on with
	// fewer nodes has replaced nobody.
	RankLimit int
	// Checks are the flags by which the nodes of a round examine each other before their workers start, empty for none.
	// None may take part that has others: it would not come to the check, or start its workers at once.
	Checks string
	// Quarantine is how long a node that a check has excluded may not come back, twice as long with each time; 0: it
	// may at once. IDs are those of this node's accelerators, by which it is known under another name, too.
	Quarantine time.Duration
	IDs        []string
	// Token is the job's secret; every agent has the same, or none has one.
	Token []byte
	// Order ranks nodes: Order(p)[r] is the index of the node that gets group rank r.
	Order func([]Placement) []int
	// Store is where the agents meet, Place says it in words, At is its address, "host:port", where it has one. The
	// handler owns it.
	Store     Conn
	Place, At string
	// Hosts says that this agent serves Store, by Served: it leaves last, and the handler owns Served. Durable says
	// that Store outlives every agent and that its connection mends itself.
	Hosts, Durable bool
	Served         io.Closer
	// Workers is the store on this node that workers use when it has rank 0; nil only in simulations. The handler owns
	// it.
	Workers rendezvous.Server
	// Bridge makes what lets agents of torchrun take part at a store, nil where none may.
	Bridge func(store Conn) (Bridge, error)
	// Failover lets the store move when its host dies: Workers then serves agents, too, and Dial reaches the store of
	// another node.
	Failover bool
	Dial     func(ctx context.Context, addr string) (Conn, error)
	// Gone reports whether no process listens at addr any more for certain: its machine answers and says so. nil:
	// unknown.
	Gone func(ctx context.Context, addr string) bool
	Log  zerolog.Logger
}

// validate returns everything that is wrong.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	switch {
	case c.RunID == "":
		bad("the run id is empty")
	case c.Store == nil || c.Order == nil:
		bad("internal error: a membership without store or order")
	}
	if c.Min < 1 || c.Max < c.Min {
		bad("%d to %d nodes are no range", c.Min, c.Max)
	}
	if c.Unit < 1 || c.Spares < 0 {
		bad("a node unit of %d with %d spares", c.Unit, c.Spares)
	}
	if c.Max-c.Max%max(c.Unit, 1) < c.Min {
		bad("no multiple of %d lies in %d to %d nodes", c.Unit, c.Min, c.Max)
	}
	if c.Fixed != (c.NodeRank >= 0) || c.NodeRank >= c.Max {
		bad("node rank %d of %d nodes", c.NodeRank, c.Max)
	}
	if c.KeepAlive <= 0 || c.Attempts < 1 || c.JoinTimeout <= 0 || c.CloseTimeout <= 0 || c.LastCall < 0 {
		bad("a keep-alive of %v × %d, a join timeout of %v, a close timeout of %v, a last call of %v",
			c.KeepAlive, c.Attempts, c.JoinTimeout, c.CloseTimeout, c.LastCall)
	}
	if c.Failover && (c.Dial == nil || c.Workers == nil) {
		bad("internal error: fail-over without a store on this node")
	}
	return errors.Join(errs...)
}

// deadAfter is how long a node may be silent: with the time until somebody looks, the fence and the meeting, a new
// round begins within KeepAlive × Attempts.
func (c *Config) deadAfter() time.Duration {
	return c.KeepAlive * time.Duration(max(c.Attempts-1, 1))
}

// manyAgents is how many agents send heartbeats half as often, as they do before they know how many they are: a store
// that has thousands of them to answer has the more time for the meeting.
const manyAgents = 256

// pause is the time between two heartbeats of an agent in a job of n agents, 0 for unknown.
func (c *Config) pause(n int) time.Duration {
	if n == 0 || n > manyAgents {
		return 2 * c.beatEvery()
	}
	return c.beatEvery()
}

// beatEvery is the shortest time between two heartbeats, lookEvery the time between two looks at them. Of the time
// since the last look no more than longestGap counts as silence of the others.
func (c *Config) beatEvery() time.Duration  { return c.KeepAlive / 4 }
func (c *Config) lookEvery() time.Duration  { return c.KeepAlive / 8 }
func (c *Config) longestGap() time.Duration { return c.KeepAlive / 2 }

// fence is the grace of workers on nodes that may be cut off. A node that nobody hears stops its workers when it hears
// of nobody for deadAfter, and that is not later than when it is given up: it answered last before it was heard last.
// fenced is until when they have ended, from then on.
func (c *Config) fence() time.Duration  { return c.KeepAlive / 4 }
func (c *Config) fenced() time.Duration { return c.fence() + c.lookEvery() }

// lease is how long after its last heartbeat an agent's workers may run at most. Others begin without them after
// deadAfter and fenced.
func (c *Config) lease() time.Duration { return c.deadAfter() + c.fence() + c.lookEvery()/2 }

func (c *Config) rules(movable bool) rules {
	return rules{
		min: c.Min, max: c.Max, spares: c.Spares, unit: c.Unit, fixed: c.Fixed, checks: c.Checks, lastCall: c.LastCall,
		patience: c.deadAfter(),
		doors:    (c.Checks != "" || c.Quarantine > 0) && !c.Fixed, replaceLimit: c.ReplaceLimit, backoffLimit: c.BackoffLimit,
		rankLimit: c.RankLimit,
		lossLimit: c.LossLimit,
		quorum:    movable, fence: c.fence(), fenced: c.fenced(), order: c.Order,
	}
}

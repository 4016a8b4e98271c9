// Package c10d holds what a torchelastic "c10d" rendezvous is made of: the state that all agents of a job share, the
// pickle that PyTorch's agents keep it in, and the decisions of one agent. Agents of real torchrun and ours change the
// same state, one compare-and-set after the other.
//
// Step and all below it are pure: no socket, no clock, no goroutine. Whoever drives them reads the state from a store,
// shows it to an Observer, asks Step what to do, writes the answer back by compare-and-set, and begins again with what
// the store returns. That is what a Bridge does, for all nodes of ours in a job with agents of torchrun at once.
//
// Source of the rules: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of PyTorch 2.15.0, read and run; its
// 1.13.1 read. Where we deviate, the comment names the defect that is avoided.
package c10d

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Node names one agent: _NodeDesc upstream. Two nodes are the same when all three fields are.
type Node struct {
	// Addr is the node's address or host name; the workers' MASTER_ADDR where the node is rank 0. 1.13 calls it fqdn.
	Addr string
	// PID is the agent's process id, LocalID tells several handlers of one process apart.
	PID, LocalID int64
}

// String returns the node as upstream prints it: addr_pid_localid.
func (n Node) String() string { return fmt.Sprintf("%s_%d_%d", n.Addr, n.PID, n.LocalID) }

// Compare orders nodes as upstream does: by address (its code points, which is the order of its UTF-8 bytes), process
// id, local id.
func (n Node) Compare(o Node) int {
	if c := strings.Compare(n.Addr, o.Addr); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(n.PID, o.PID), cmp.Compare(n.LocalID, o.LocalID))
}

// Nodes is a set of nodes.
type Nodes map[Node]struct{}

// Has reports whether n is in the set.
func (s Nodes) Has(n Node) bool { _, ok := s[n]; return ok }

// Sorted returns the nodes in order.
func (s Nodes) Sorted() []Node { return slices.SortedFunc(maps.Keys(s), Node.Compare) }

// State is what the agents of a job share: _RendezvousState upstream. Step never changes a State, it returns another.
type State struct {
	// Round counts from 0.
	Round int
	// Complete says that the participants of this round are fixed; they keep their ranks until the round ends.
	Complete bool
	// Deadline is when an incomplete round that has enough nodes may be completed, zero for none.
	Deadline time.Time
	// Closed says that nobody joins any more, ever.
	Closed bool
	// Participants maps each node of the round to its rank, which is 0 until the round is complete.
	Participants map[Node]int
	// WaitList holds the nodes that wait for the next round. Upstream's agents restart while it is not empty.
	WaitList Nodes
	// RedundancyList holds spare nodes beyond the maximum (2.3 and newer).
	RedundancyList Nodes
	// LastHeartbeats says when each node last wrote, by its own clock, in UTC.
	LastHeartbeats map[Node]time.Time

	// Ranks are the ranks of round RanksRound, the last complete one that one of us wrote to. Upstream's agents carry
	// the two along as attributes that they do not know. They are what lets a node keep its rank, and what tells a late
	// reader of a complete round that a member has left it already.
	Ranks      map[Node]int
	RanksRound int

	// Naive says that times are written without a time zone, as 1.x does. Its agents die of a zone, newer ones of none.
	Naive bool
	// FQDN says that a node's address is named fqdn, as in 1.13.
	FQDN bool

	// unknown holds attributes of other agents, in order. They are written back as they were read.
	unknown []attribute
}

// NewState returns the state of a job that nobody has joined yet.
func NewState() *State {
	return &State{
		Participants: map[Node]int{}, WaitList: Nodes{}, RedundancyList: Nodes{}, LastHeartbeats: map[Node]time.Time{},
		Ranks: map[Node]int{}, RanksRound: -1,
	}
}

// Clone returns a state that can be changed without changing s.
func (s *State) Clone() *State {
	c := *s
	c.Participants, c.WaitList, c.RedundancyList = maps.Clone(s.Participants), maps.Clone(s.WaitList), maps.Clone(s.RedundancyList)
	c.LastHeartbeats, c.Ranks = maps.Clone(s.LastHeartbeats), maps.Clone(s.Ranks)
	return &c
}

// Nodes returns every node that takes part, waits, is spare or has a heartbeat, sorted.
func (s *State) Nodes() []Node {
	all := make(Nodes, len(s.LastHeartbeats))
	for n := range s.everyNode {
		all[n] = struct{}{}
	}
	return all.Sorted()
}

// inOrder returns every node that the state mentions anywhere, sorted.
func (s *State) inOrder() []Node {
	order := slices.AppendSeq(make([]Node, 0, len(s.LastHeartbeats)), maps.Keys(s.LastHeartbeats))
	more := Nodes{} // few as a rule: of the last round those that have left
	add := func(n Node) {
		if _, known := s.LastHeartbeats[n]; !known {
			more[n] = struct{}{}
		}
	}
	for n := range s.everyNode {
		add(n)
	}
	for n := range s.Ranks {
		add(n)
	}
	order = slices.AppendSeq(order, maps.Keys(more))
	slices.SortFunc(order, Node.Compare)
	return order
}

// everyNode yields every node that is in a list or has a heartbeat; some more than once.
func (s *State) everyNode(yield func(Node) bool) {
	for n := range s.LastHeartbeats {
		if !yield(n) {
			return
		}
	}
	for n := range s.Participants {
		if !yield(n) {
			return
		}
	}
	for _, list := range []Nodes{s.WaitList, s.RedundancyList} {
		for n := range list {
			if !yield(n) {
				return
			}
		}
	}
}

// Mentions reports whether n takes part, waits or is spare.
func (s *State) Mentions(n Node) bool {
	_, in := s.Participants[n]
	return in || s.WaitList.Has(n) || s.RedundancyList.Has(n)
}

// Check reports what makes a complete round unusable: ranks that are negative or given twice. No agent writes such a
// state. Ranks may be missing, because participants leave a complete round one after the other.
func (s *State) Check() error {
	if s.Round < 0 {
		return fmt.Errorf("round is %d, want at least 0", s.Round)
	}
	if !s.Complete {
		return nil
	}
	at := make(map[int]Node, len(s.Participants))
	for n, rank := range s.Participants {
		if rank < 0 {
			return fmt.Errorf("node %s has rank %d in complete round %d", n, rank, s.Round)
		}
		if other, taken := at[rank]; taken {
			if n.Compare(other) < 0 {
				n, other = other, n
			}
			return fmt.Errorf("nodes %s and %s both have rank %d in complete round %d", other, n, rank, s.Round)
		}
		at[rank] = n
	}
	return nil
}

// remove drops n from everything, and returns whether it was a participant. afterRemoval must follow.
func (s *State) remove(n Node) (participant bool) {
	_, participant = s.Participants[n]
	delete(s.Participants, n)
	delete(s.WaitList, n)
	delete(s.RedundancyList, n)
	delete(s.LastHeartbeats, n)
	return participant
}

// afterRemoval is what upstream does after participants were removed (_remove_participant_epilogue): the last one out
// of a complete round opens the next one, and an incomplete round with too few nodes has no deadline.
func (s *State) afterRemoval(minNodes int) {
	switch {
	case s.Complete && len(s.Participants) == 0:
		s.Complete = false
		s.Round++
	case !s.Complete && len(s.Participants) < minNodes:
		s.Deadline = time.Time{}
	}
}

// remember notes the ranks of a complete round, once per round and before anything is changed in it. Of the round that
// we have joined last they are those that we have joined it with: members may have left since, whose ranks stay free for
// who comes back, and nobody else is to be moved to them.
func (s *State) remember(joined Round) {
	if s.RanksRound < joined.Number && joined.Number <= s.Round && s.continues(joined) {
		s.Ranks, s.RanksRound = maps.Clone(joined.Ranks), joined.Number
	}
	if s.Complete && s.RanksRound != s.Round {
		s.Ranks, s.RanksRound = maps.Clone(s.Participants), s.Round
	}
}

// continues reports whether the state has come of a round: that is over, or it goes on, and all who take part have the
// ranks that they had.
func (s *State) continues(joined Round) bool {
	if joined.Number == s.Round {
		for n, rank := range s.Participants {
			if was, in := joined.Ranks[n]; !in || was != rank {
				return false
			}
		}
	}
	return len(joined.Ranks) > 0 && (s.Complete || joined.Number < s.Round)
}

// complete fixes the participants and gives them ranks. See assignRanks for ours.
func (s *State) complete(ours Nodes) {
	s.Complete, s.Deadline = true, time.Time{}
	s.Participants = assignRanks(s.Participants, s.Ranks, ours)
	s.remember(Round{})
}

// assignRanks ranks the participants. Upstream sorts them anew in every round, so that one newcomer can change the rank
// of everybody (§9 rows 5 and 6). Here, who had a rank in the round before keeps it where the world is large enough; a
// node that was restarted takes the rank that its address had; what is left is filled in upstream's order. In a first
// round that is upstream's order altogether. Where ours is not nil, all others are upstream's, and may have a successor of rank 0.
func assignRanks(participants, before map[Node]int, ours Nodes) map[Node]int {
	ranks := make(map[Node]int, len(participants))
	taken := make([]bool, len(participants))
	if n, ok := successor(participants, before, ours); ours != nil && ok {
		ranks[n], taken[0] = 0, true
	}
	var left []Node
	for _, n := range slices.SortedFunc(maps.Keys(participants), Node.Compare) {
		if _, done := ranks[n]; done {
			continue
		}
		// taken is asked too: what stands in the store is not ours alone, and may give a rank twice.
		if rank, ok := before[n]; ok && rank >= 0 && rank < len(taken) && !taken[rank] {
			ranks[n], taken[rank] = rank, true
			continue
		}
		left = append(left, n)
	}
	free := map[string][]int{}
	for n, rank := range before {
		if _, in := participants[n]; !in && rank >= 0 && rank < len(taken) && !taken[rank] {
			free[n.Addr] = append(free[n.Addr], rank)
		}
	}
	for _, ranks := range free {
		slices.Sort(ranks)
	}
	var rest []Node
	for _, n := range left {
		if f := free[n.Addr]; len(f) > 0 && !taken[f[0]] {
			ranks[n], taken[f[0]] = f[0], true
			free[n.Addr] = f[1:]
			continue
		}
		rest = append(rest, n)
	}
	next := 0
	for _, n := range rest {
		for taken[next] {
			next++
		}
		ranks[n], taken[next] = next, true
	}
	return ranks
}

// successor returns the node that must have rank 0 because whoever had it is gone. From 2.6 on agents of upstream remember
// for good where the first rank 0 that they met served the workers' store; only who becomes rank 0 himself opens one of
// his own (2.14). With anybody else as rank 0 an agent of upstream would send its workers to the dead one.
func successor(participants, before map[Node]int, ours Nodes) (Node, bool) {
	first, ok, gone := Node{}, false, false
	for n, rank := range before {
		_, in := participants[n]
		switch {
		case rank == 0 && in:
			return Node{}, false
		case rank == 0:
			gone = true
		case in && rank > 0 && !ours.Has(n) && (!ok || rank < before[first] || rank == before[first] && n.Compare(first) < 0):
			first, ok = n, true
		}
	}
	return first, gone && ok
}

// Settings are one agent's. Upstream lets every agent of a job have its own and compares none of them.
type Settings struct {
	// MinNodes and MaxNodes bound a round, 1 ≤ MinNodes ≤ MaxNodes.
	MinNodes, MaxNodes int
	// JoinTimeout bounds a join (join_timeout, 600 s), CloseTimeout a close (close_timeout, 30 s), HeartbeatTimeout the
	// write of one keep-alive (heartbeat_timeout, 5 s).
	JoinTimeout, CloseTimeout, HeartbeatTimeout time.Duration
	// LastCall is how long a round that has MinNodes stays open for more (last_call_timeout, 30 s).
	LastCall time.Duration
	// KeepAlive is the time between two heartbeats (keep_alive_interval, 5 s). A node is dead after KeepAliveAttempts
	// (keep_alive_max_attempt, 3) times that without a new one.
	KeepAlive         time.Duration
	KeepAliveAttempts int
	// Legacy makes a state in which nobody is yet one that 1.x agents read. Any other keeps its kind.
	Legacy bool
}

// DefaultSettings returns upstream's defaults for a job of minNodes to maxNodes nodes.
func DefaultSettings(minNodes, maxNodes int) Settings {
	return Settings{
		MinNodes: minNodes, MaxNodes: maxNodes,
		JoinTimeout: 10 * time.Minute, CloseTimeout: 30 * time.Second, HeartbeatTimeout: 5 * time.Second,
		LastCall: 30 * time.Second, KeepAlive: 5 * time.Second, KeepAliveAttempts: 3,
	}
}

// DeadAfter is how long a node may be silent.
func (s Settings) DeadAfter() time.Duration { return s.KeepAlive * time.Duration(s.KeepAliveAttempts) }

// Deadline returns when an operation that begins at the time at, since the agent's start, must have ended.
func (s Settings) Deadline(w Want, at time.Duration) time.Duration {
	switch w {
	case WantClose:
		return at + s.CloseTimeout
	case WantStay:
		return at + s.HeartbeatTimeout
	default:
		return at + s.JoinTimeout
	}
}

// Validate returns everything that is wrong with the settings.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if s.MinNodes < 1 {
		bad("minimum number of nodes is %d, want at least 1", s.MinNodes)
	}
	if s.MaxNodes < s.MinNodes {
		bad("maximum number of nodes is %d, want at least the minimum of %d", s.MaxNodes, s.MinNodes)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"join timeout", s.JoinTimeout},
		{"close timeout", s.CloseTimeout},
		{"heartbeat timeout", s.HeartbeatTimeout},
		{"last call timeout", s.LastCall},
		{"keep-alive interval", s.KeepAlive},
	} {
		if d.value <= 0 {
			bad("%s is %v, want more than 0", d.name, d.value)
		}
	}
	if s.KeepAliveAttempts < 1 {
		bad("number of keep-alive attempts is %d, want at least 1", s.KeepAliveAttempts)
	}
	return errors.Join(errs...)
}

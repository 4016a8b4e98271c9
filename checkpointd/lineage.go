package checkpointd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"muster/checkpointd/planner"
	"muster/rendezvous"
)

// An era is 24 bits that count the rounds of a lineage, 24 bits by chance, and 16 that count the loads of the round.
// Those by chance tell rounds with one number apart: such as of nodes that went on without each other, and have met
// again.
const (
	eraShift   = 16 // a node that is alone counts its groups of workers here
	roundShift = 40
	loadsMax   = 1<<eraShift - 1
)

// firstEra is the first era of a round of several nodes.
func firstEra(round, nonce uint64) uint64 { return round<<roundShift | nonce<<eraShift }

// nodeState is what a node tells the leader when a round begins.
//
// A lineage is all that the nodes of a job have done since one of them led for the first time without anything that
// agents before them had left. It is named by the Unix time of that in nanoseconds: the newest is what the job does
// now. What is in memory of another one is never put together with it.
type nodeState struct {
	// Lineage is the one that the node takes part in; 0 for none yet.
	Lineage int64 `json:"lineage,omitempty"`
	// Left are those of which a killed agent has left copies on the node.
	Left []int64 `json:"left,omitempty"`
	// Round is the largest number of a round that the node knows.
	Round uint64 `json:"round,omitempty"`
	// Heads are what the trackers of its directories name, as far as its lineages have written it, and which moments
	// these are: see set.head.
	Heads map[string]moment `json:"heads,omitempty"`
	// Node is its name, Dir what Config.Dir is there.
	Node string `json:"node,omitempty"`
	Dir  string `json:"dir,omitempty"`
}

// roundCall is what the leader tells all nodes when a round begins.
type roundCall struct {
	// Addr is where the leader is reached.
	Addr    string `json:"addr"`
	Lineage int64  `json:"lineage"`
	// Era is the first of the round.
	Era uint64 `json:"era"`
	// Heads are those of all nodes.
	Heads map[string]moment `json:"heads,omitempty"`
	// Apart says which nodes were given different directories, empty where none were.
	Apart string `json:"apart,omitempty"`
}

// leaderKey is where the leader puts its roundCall on a round's board, nodeStateKey where the node with a group rank
// says how it stands.
const leaderKey = "ckpt/leader"

func nodeStateKey(rank int) string { return "ckpt/node/" + strconv.Itoa(rank) }

// decide finds the lineage of a round: the newest that a node takes part in, else the newest of which something is
// left, else a new one. left reports whether a killed agent has left something of it.
func decide(nodes []nodeState, now time.Time, nonce uint64) (lineage int64, era uint64, left bool) {
	var here, dead int64
	var round uint64
	for _, n := range nodes {
		here, round = max(here, n.Lineage), max(round, n.Round)
		for _, of := range n.Left {
			dead = max(dead, of)
		}
	}
	lineage = cmp.Or(here, dead, now.UnixNano())
	left = slices.ContainsFunc(nodes, func(n nodeState) bool { return slices.Contains(n.Left, lineage) })
	return lineage, firstEra(round+1, nonce), left
}

// apart says which nodes were given different directories of checkpoints: no step is ever whole in one of them.
func apart(nodes []nodeState) string {
	for _, n := range nodes {
		if n.Dir != "" && nodes[0].Dir != "" && n.Dir != nodes[0].Dir {
			return planner.Clean(fmt.Sprintf("%s on node %s, %s on node %s", nodes[0].Dir, nodes[0].Node, n.Dir, n.Node), 2000)
		}
	}
	return ""
}

// nodeState is how this node stands, with what was left there.
func (t *participant) nodeState(left []*leftover) nodeState {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	n := nodeState{
		Node: s.cfg.Node, Dir: s.cfg.Dir, Lineage: t.lineage, Round: s.round << eraShift >> roundShift,
		Heads: map[string]moment{},
	}
	know := func(st *set) {
		n.Round = max(n.Round, st.newestEra()>>roundShift)
		if st.head != "" {
			n.Heads[st.head] = st.committed
		}
		if st.next != "" { // it may be on disk before the other nodes look there
			n.Heads[st.next] = st.nextAt
		}
	}
	for _, st := range s.allSetsLocked() {
		know(st)
	}
	for _, lo := range left {
		if len(lo.sets) > 0 {
			n.Left = append(n.Left, lo.label.Lineage)
		}
		for _, st := range lo.sets {
			know(st)
		}
	}
	return n
}

// newestEra is the newest era of what is in memory of a set, or on disk.
func (st *set) newestEra() uint64 {
	era := uint64(0)
	if st.committed != planner.Never {
		era = st.committed.Era
	}
	for slot := range st.copies {
		era = max(era, slot.At.Era)
	}
	return era
}

// callRound has all nodes of a round say how they stand, decides, leads them from then on, and tells them. board is nil
// where this node is the only one.
func (t *participant) callRound(
	ctx context.Context, r rendezvous.Round, board rendezvous.Board, own nodeState,
) (call roundCall, err error) {
	nodes := []nodeState{own}
	hearing, cancel := context.WithTimeout(ctx, joinLimit/2)
	defer cancel()
	for rank := 1; rank < r.GroupWorldSize; rank++ {
		var n nodeState
		switch err := hear(hearing, board, nodeStateKey(rank), &n); {
		case err == nil:
			nodes = append(nodes, n)
		case hearing.Err() == nil || ctx.Err() != nil:
			return call, fmt.Errorf("the node with group rank %d does not say what it has in memory: %w", rank, err)
		default: // it may come later; the planner gives it up if it does not
			t.s.cfg.Log.Warn().Int("group_rank",
				rank).Msg("a node does not say what checkpoints it has in memory: what is done now is decided without it")
		}
	}
	call.Addr, call.Heads = string(t.id), map[string]moment{}
	for _, n := range nodes {
		for head, at := range n.Heads {
			if known, ok := call.Heads[head]; !ok || at.Compare(known) > 0 {
				call.Heads[head] = at
			}
		}
	}
	call.Apart = apart(nodes)
	var left bool
	call.Lineage, call.Era, left = decide(nodes, time.Now(), rand.Uint64N(1<<(roundShift-eraShift)))
	why := ""
	switch {
	case left:
		why = leftWhy
	case r.Number > 0:
		why = "the workers start again"
	}
	l := t.leads()
	if l == nil {
		l = newLeading(t.s)
		t.lead(l)
	}
	l.begin(r.Number, r.GroupWorldSize, call.Era, why)
	if t.local {
		l.listen(r, board) //nolint:contextcheck // it listens as long as the round lasts, not only while it begins
	}
	if board != nil {
		err = say(ctx, board, leaderKey, call)
	}
	return call, err
}

// follow says how this node stands, and hears what the leader has decided.
func (t *participant) follow(ctx context.Context, r rendezvous.Round, board rendezvous.Board, own nodeState) (call roundCall, err error) {
	if err := say(ctx, board, nodeStateKey(r.GroupRank), own); err != nil {
		return call, err
	}
	return call, hear(ctx, board, leaderKey, &call)
}

// say puts something on a board, hear waits for it.
func say(ctx context.Context, board rendezvous.Board, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return board.Set(ctx, key, text)
}

func hear(ctx context.Context, board rendezvous.Board, key string, v word) error {
	text, err := board.Get(ctx, key)
	if err != nil {
		return err
	}
	return readWord(text, v)
}

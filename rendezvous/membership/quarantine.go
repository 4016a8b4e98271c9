package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/rendezvous"
)

// Nodes that a check has excluded are remembered in the store, so that one that is started again at once does not stop
// the others each time: until a moment that is twice as far away with each exclusion. The moment is absolute, so that
// an old record that somebody puts there again says nothing new; clocks of nodes that differ make a cool-down longer or
// shorter by as much.

const (
	maxExcluded = 256            // nodes that are remembered
	maxIDs      = 64             // ids of accelerators of one node
	maxID       = 128            // bytes of one
	longestCool = 24 * time.Hour // what doubling comes to at most
)

// excludedNode is what is remembered of a node.
type excludedNode struct {
	Node   string   `json:"node"`
	IDs    []string `json:"ids,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Count is how often it was excluded. Until is when its cool-down ends, in ms of Unix time, and Cool how long that
	// was, in ms.
	Count int   `json:"count"`
	Until int64 `json:"until"`
	Cool  int64 `json:"cool"`
}

// quarantineRecord is all that is remembered of excluded nodes.
type quarantineRecord struct {
	Nodes []excludedNode `json:"nodes"`
}

func (q *quarantineRecord) check() error {
	if len(q.Nodes) > maxExcluded {
		return fmt.Errorf("it has %d excluded nodes", len(q.Nodes))
	}
	for _, n := range q.Nodes {
		long := slices.ContainsFunc(n.IDs, func(id string) bool { return len(id) > maxID })
		if n.Node == "" || len(n.Node) > maxLabel || len(n.IDs) > maxIDs || long || len(n.Reason) > maxLabel {
			return errors.New("a name in it is too long, or there is none")
		}
		if n.Count < 1 || n.Count > maxRounds || n.Until < 0 || n.Cool < 0 || n.Cool > longestCool.Milliseconds() {
			return fmt.Errorf("it has a node that was excluded %d times, for %d ms", n.Count, n.Cool)
		}
	}
	return nil
}

// is reports whether a node is the one that is remembered: its accelerators tell where both are known, else its name. A
// name may be another machine's now, and a machine may have another name.
func (n *excludedNode) is(node string, ids []string) bool {
	if len(n.IDs) > 0 && len(ids) > 0 {
		return slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(n.IDs, id) })
	}
	return n.Node == node
}

// left is how much of the cool-down is left.
func (n *excludedNode) left(now time.Time) time.Duration {
	return min(max(time.UnixMilli(n.Until).Sub(now), 0), time.Duration(n.Cool)*time.Millisecond)
}

func (q *quarantineRecord) find(node string, ids []string) *excludedNode {
	var found *excludedNode
	for i := range q.Nodes {
		if n := &q.Nodes[i]; n.is(node, ids) && (found == nil || n.Until > found.Until) {
			found = n
		}
	}
	return found
}

// knownBy are the ids by which a node is known: not more than a record may have.
func knownBy(ids []string) []string {
	var known []string
	for _, id := range ids {
		if id != "" && len(id) <= maxID && !strings.Contains(id, ",") && len(known) < maxIDs {
			known = append(known, id)
		}
	}
	return known
}

// note takes in that a node was excluded now; cool is the first cool-down.
func (q *quarantineRecord) note(now time.Time, cool time.Duration, gone rendezvous.Exclusion) {
	n := excludedNode{Node: clip(gone.Node, maxLabel), IDs: knownBy(gone.IDs), Reason: clip(gone.Reason, maxLabel/2), Count: 1}
	if n.Node == "" {
		return // nobody has that name
	}
	q.forget(now)
	if before := q.find(n.Node, n.IDs); before != nil {
		n.Count = before.Count
		if before.left(now) == 0 { // else it has not been away: nodes leave one after the other, and are found at fault until then
			n.Count++
		}
	}
	for range min(n.Count-1, 20) {
		cool = min(2*cool, longestCool)
	}
	n.Cool, n.Until = cool.Milliseconds(), now.Add(cool).UnixMilli()
	q.Nodes = append(slices.DeleteFunc(q.Nodes, func(e excludedNode) bool { return e.is(n.Node, n.IDs) }), n)
	q.forget(now)
}

// forget drops who has not been excluded again for as long as its cool-down was, and where there are too many those
// whose time is over first.
func (q *quarantineRecord) forget(now time.Time) {
	q.Nodes = slices.DeleteFunc(q.Nodes, func(e excludedNode) bool { return now.UnixMilli() > e.Until+e.Cool })
	slices.SortStableFunc(q.Nodes, func(a, b excludedNode) int { return cmp.Compare(b.Until, a.Until) })
	q.Nodes = q.Nodes[:min(len(q.Nodes), maxExcluded)]
}

// merge adds what another one has remembered.
func (q *quarantineRecord) merge(other quarantineRecord) {
	for _, e := range other.Nodes {
		have := q.find(e.Node, e.IDs)
		switch {
		case have == nil:
			q.Nodes = append(q.Nodes, e)
		case have.Until < e.Until:
			*have = e
		default:
		}
	}
}

func clip(text string, most int) string { return strings.ToValidUTF8(text[:min(len(text), most)], "") }

// quarantine is what an agent knows of excluded nodes. Safe for concurrent use.
type quarantine struct {
	mu    sync.Mutex
	known quarantineRecord
}

// learn adds what stands in the store.
func (q *quarantine) learn(rec quarantineRecord) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.known.merge(rec)
	q.known.forget(time.Now())
}

// find returns what is remembered of a node whose cool-down is not over, nil for nothing.
func (q *quarantine) find(now time.Time, node string, ids []string) *excludedNode {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.known.find(node, ids); n != nil && n.left(now) > 0 {
		found := *n
		return &found
	}
	return nil
}

// all returns a copy of what is known.
func (q *quarantine) all() quarantineRecord {
	q.mu.Lock()
	defer q.mu.Unlock()
	return quarantineRecord{slices.Clone(q.known.Nodes)}
}

// keyQuarantine is under which excluded nodes are remembered.
const keyQuarantine = "quarantine"

// Exclude implements rendezvous.Doorkeeper. Every agent remembers by itself, for the case that the store moves before
// the word of the one that leads has come there.
func (h *Handler) Exclude(ctx context.Context, gone []rendezvous.Exclusion, leads bool) error {
	if h.cfg.Quarantine <= 0 || len(gone) == 0 {
		return nil
	}
	known := h.excluded.all()
	note := h.noting(gone)
	var err error
	if leads {
		ctx, cancel := context.WithTimeout(ctx, h.cfg.CloseTimeout)
		defer cancel()
		if err = h.conn.remember(ctx, h.keys.job(keyQuarantine), &known, note); err != nil {
			err = fmt.Errorf("cannot note in the store which nodes were excluded: %w", err)
		}
	}
	if !leads || err != nil {
		note(&known)
	}
	h.excluded.learn(known)
	return err
}

// Remember implements rendezvous.Doorkeeper.
func (h *Handler) Remember(gone []rendezvous.Exclusion) {
	if h.cfg.Quarantine <= 0 || len(gone) == 0 {
		return
	}
	known := h.excluded.all()
	h.noting(gone)(&known)
	h.excluded.learn(known)
}

// noting adds to what is remembered that nodes were excluded now.
func (h *Handler) noting(gone []rendezvous.Exclusion) func(*quarantineRecord) {
	now := time.Now()
	return func(q *quarantineRecord) {
		for _, g := range gone {
			q.note(now, h.cfg.Quarantine, g)
		}
	}
}

// remember changes what stands under key, with all that is known, and makes what stands there then known. What nobody
// of this job has written there makes way.
func (r *records) remember(ctx context.Context, key string, known *quarantineRecord, change func(*quarantineRecord)) error {
	for range 8 { // others may write there at the same time
		var stands quarantineRecord
		was, err := r.peek(ctx, key, &stands)
		if storeFailed(err) {
			return err
		}
		if err != nil {
			stands = quarantineRecord{}
		}
		stands.merge(*known)
		change(&stands)
		sealed := r.codec.seal(key, stands)
		raw, err := r.swapSealed(ctx, key, was.raw, sealed)
		if err != nil {
			return err
		}
		if bytes.Equal(raw, sealed) {
			*known = stands
			return nil
		}
	}
	return errors.New("something else changes it all the time")
}

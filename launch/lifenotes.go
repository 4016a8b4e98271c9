package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous"
)

const (
	// lifeApart is the time between two notes of all nodes together, on average: where there are many, each writes more
	// rarely.
	lifeApart = 5 * time.Millisecond
	// lifeStale is for how long a node may say nothing new at least, before it is taken for one that says nothing.
	lifeStale = 10 * time.Second
	// lifeFirst is how long the first word of all nodes is waited for at least, before it is told that one lacks.
	lifeFirst = 30 * time.Second
)

// lifeKey is where the node with a group rank says for how long its workers have shown no sign of life.
func lifeKey(groupRank int) string { return "control/life/" + strconv.Itoa(groupRank) }

// lifeNote is what a node says there. Nothing in it depends on its clock.
type lifeNote struct {
	// Count is how many notes the node has written.
	Count uint64 `json:"count"`
	// Silent is for how many nanoseconds no worker of the node has shown a sign of life. Exact says that they tell
	// their steps. Workers is how many run.
	Silent  time.Duration `json:"silent"`
	Exact   bool          `json:"exact,omitempty"`
	Workers int           `json:"workers"`
	// Quiet is for how long there was no sign of life of any kind; QuietLimit and StepLimit are the time-outs for that
	// and for steps which the node has learned. They belong to --hang-timeout auto.
	Quiet      time.Duration `json:"quiet,omitempty"`
	QuietLimit time.Duration `json:"quietLimit,omitempty"`
	StepLimit  time.Duration `json:"stepLimit,omitempty"`
}

// lifeWatch is a node's part in finding out whether the workers of all nodes hang: each says on the round's board for
// how long its workers have been silent, and the node with group rank 0 decides. A node that is alone decides by
// itself.
type lifeWatch struct {
	board     rendezvous.Board // nil: this node is alone
	groupRank int
	every     time.Duration
	log       zerolog.Logger
	names     func(ctx context.Context) []string // of the nodes

	mu    sync.Mutex
	world worldLife
	count uint64
}

// newLifeWatch returns the watch of a node in a round.
func newLifeWatch(r *rendezvous.Round, timeout time.Duration) *lifeWatch {
	every := max(lifeEvery, min(timeout/8, lifeRarely), time.Duration(r.GroupWorldSize)*lifeApart)
	nodes := max(r.GroupWorldSize, 1)
	w := &lifeWatch{groupRank: r.GroupRank, every: every}
	if nodes > 1 {
		w.board = r.Board()
	}
	w.world = worldLife{nodes: make([]heardLife, nodes), stale: max(4*every, lifeStale)}
	return w
}

// decides reports whether this node decides.
func (w *lifeWatch) decides() bool { return w.groupRank == 0 }

// say takes in how this node stands, and tells the one that decides.
func (w *lifeWatch) say(ctx context.Context, n lifeNote, now time.Time) {
	w.mu.Lock()
	w.count++
	n.Count = w.count
	w.world.take(w.groupRank, n, now)
	w.mu.Unlock()
	if w.board == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.every)
	defer cancel()
	text, err := json.Marshal(n)
	if err == nil {
		err = note(ctx, w.board, lifeKey(w.groupRank), text)
	}
	if err != nil {
		w.log.Debug().Err(err).Msg("the other nodes do not hear whether the workers here live")
	}
}

// judge says how all nodes stand.
func (w *lifeWatch) judge(now time.Time) judgement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.world.judge(now)
}

// forget has nothing count any more that was heard before: this process was stopped.
func (w *lifeWatch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.world.nodes)
}

// hear reads what the other nodes say until ctx ends, where this node decides. Where one has said nothing for longer
// than patience, that is told once.
func (w *lifeWatch) hear(ctx context.Context, patience time.Duration) {
	if w.board == nil {
		return
	}
	from := []int{0}
	if w.decides() {
		from = nil
		for i := range w.world.nodes {
			from = append(from, i)
		}
	}
	from = slices.DeleteFunc(from, func(i int) bool { return i == w.groupRank })
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	patient := time.After(patience)
	for {
		if w.decides() {
			w.read(ctx, from)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-patient:
			if !w.decides() { // it writes for the others as they do for it
				w.read(ctx, from)
			}
			w.warn(ctx, from)
			if !w.decides() {
				return
			}
		}
	}
}

// read reads the last words of nodes.
func (w *lifeWatch) read(ctx context.Context, from []int) {
	ctx, cancel := context.WithTimeout(ctx, worldTime)
	defer cancel()
	forEach(len(from), func(i int) {
		var n lifeNote
		text, err := w.board.Get(ctx, lifeKey(from[i]))
		if err != nil || json.Unmarshal(text, &n) != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.world.take(from[i], n, time.Now())
	})
}

// warn names nodes that have said nothing.
func (w *lifeWatch) warn(ctx context.Context, from []int) {
	if ctx.Err() != nil {
		return
	}
	var silent []int
	w.mu.Lock()
	for _, i := range from {
		if w.world.nodes[i].since.IsZero() {
			silent = append(silent, i)
		}
	}
	w.mu.Unlock()
	if len(silent) == 0 {
		return
	}
	const most = 8
	all, names := w.names(ctx), []string(nil)
	for _, i := range silent[:min(len(silent), most)] {
		if i < len(all) {
			names = append(names, all[i])
		}
	}
	if more := len(silent) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	w.log.Warn().Strs("nodes", names).Str("hint", "give all nodes the same --hang-timeout").
		Msg("it cannot be told whether the job hangs: these nodes do not say whether their workers live")
}

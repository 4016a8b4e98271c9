package membership

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/rendezvous"
)

// doorOrder tells a node that waits to examine itself, as Rank of Size nodes.
type doorOrder struct {
	Nonce string `json:"nonce"`
	Round int    `json:"round"`
	Rank  int    `json:"rank"`
	Size  int    `json:"size"`
	// Standard is rendezvous.Door.Standard.
	Standard []byte `json:"standard,omitempty"`
}

func (o *doorOrder) check() error {
	if !isNonce(o.Nonce) || o.Round < 0 || o.Round > maxRounds || o.Size < 1 || o.Size > mostExamined || o.Rank < 0 || o.Rank >= o.Size ||
		len(o.Standard) > rendezvous.MaxStandard {
		return fmt.Errorf("it has rank %d of %d nodes to be examined for round %d", o.Rank, o.Size, o.Round)
	}
	return nil
}

// doorway is an agent's part in examinations, while it waits for one place.
type doorway struct {
	h       *Handler
	ctx     context.Context         // of the wait
	refused context.CancelCauseFunc // ends it
	nonce   string                  // of the order that stands, or stood last
	held    bool                    // it was said that this node is in quarantine
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	board   *doorBoard
	unfit   error // why this node must not join; to be read when wg has ended
}

// AtDoor implements rendezvous.Doorkeeper.
func (h *Handler) AtDoor(examine func(ctx context.Context, d rendezvous.Door) error) {
	h.examine = examine
}

// atDoor begins a wait. It returns the context in which to wait, and what ends all of it.
func (h *Handler) atDoor(ctx context.Context) (context.Context, *doorway) {
	d := &doorway{h: h, cancel: func() {}}
	d.ctx, d.refused = context.WithCancelCause(ctx)
	return d.ctx, d
}

// close ends what goes on.
func (d *doorway) close() {
	d.stop()
	d.refused(nil)
}

// reason is why a wait ended with err.
func (d *doorway) reason(err error) error {
	if d.stop(); d.unfit != nil {
		return d.unfit
	}
	return err
}

// stop ends an examination. What the others may still read stays: the coordinator deletes it when all have said what
// they found.
func (d *doorway) stop() {
	d.cancel()
	d.wg.Wait()
	if d.board != nil {
		d.board.tidy(d.ctx)
	}
}

// hear does what the coordinator tells a node that waits. The last word counts.
func (d *doorway) hear(w *waiting) {
	h := d.h
	if w.Held > 0 && !d.held {
		d.held = true
		h.log.Warn().Dur("left_ms", w.Held).Str("reason", shown(w.Why)).
			Msg("this node is in quarantine, since a check has excluded it: it waits, and is examined again then")
	}
	switch {
	case w.Door == nil:
		d.stop()
		return
	case w.Door.Nonce == d.nonce: // said again
		return
	}
	d.stop()
	d.nonce = w.Door.Nonce
	term, order := h.term, *w.Door
	board := &doorBoard{
		conn: h.conn, key: func(name string) string { return h.keys.door(term, order.Nonce, name) },
		pause: h.cfg.lookEvery(), again: h.cfg.deadAfter() / 2, tidying: h.cfg.KeepAlive, said: map[string][]byte{},
	}
	in := rendezvous.Door{Round: order.Round, Rank: order.Rank, Size: order.Size, Standard: order.Standard}
	if order.Size > 1 {
		in.Board = board
	}
	ctx, cancel := context.WithCancel(d.ctx)
	d.cancel, d.board = cancel, board
	d.wg.Go(func() { board.insist(ctx) })
	d.wg.Go(func() {
		var err error
		if h.examine != nil {
			err = h.examine(ctx, in)
		}
		if ctx.Err() != nil {
			return // called off
		}
		telling, told := context.WithTimeout(ctx, h.cfg.CloseTimeout)
		defer told()
		if saidErr := board.found(telling, order.Rank, foundRecord{Agent: h.id, Fit: err == nil}); saidErr != nil {
			h.log.Debug().Err(saidErr).Msg("what was found at the door is not told")
		}
		if err != nil {
			d.unfit = err
			d.refused(err)
		}
	})
}

// doorBoard is what an agent says in one examination.
type doorBoard struct {
	conn    *records
	key     func(name string) string
	pause   time.Duration // before it looks again at what it does not believe
	again   time.Duration // between two looks whether its own words are still there
	tidying time.Duration

	mu   sync.Mutex
	said map[string][]byte // as it is to stand, by key
	told bool              // what it has found was said, and the coordinator deletes its words
}

// onBoard begins the names of keys that are on a board.
const onBoard = "board/"

// Set implements rendezvous.Board.
func (b *doorBoard) Set(ctx context.Context, name string, value []byte) error {
	key := b.key(onBoard + name)
	return b.say(ctx, key, b.conn.codec.sealBytes(key, value))
}

func (b *doorBoard) say(ctx context.Context, key string, sealed []byte) error {
	b.mu.Lock()
	b.said[key] = sealed
	b.mu.Unlock()
	return b.conn.setSealed(ctx, key, sealed)
}

// found says what was found of this node, and which keys are to be deleted when all have said that.
func (b *doorBoard) found(ctx context.Context, rank int, rec foundRecord) error {
	b.mu.Lock()
	for key := range b.said {
		rec.Written = append(rec.Written, strings.TrimPrefix(key, b.key(onBoard)))
	}
	b.told = true
	b.mu.Unlock()
	slices.Sort(rec.Written)
	key := b.key(fmt.Sprint("found/", rank))
	return b.say(ctx, key, b.conn.codec.seal(key, rec))
}

// insist says again what was taken away, until the examination is over: whoever does not hear a node takes it for
// silent, and may blame it, and the door is shut until all have said what they found.
func (b *doorBoard) insist(ctx context.Context) {
	tick := time.NewTicker(b.again)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		b.mu.Lock()
		said := maps.Clone(b.said)
		b.mu.Unlock()
		for key, sealed := range said {
			if stands, err := b.conn.stands(ctx, key, sealed); err == nil && !stands {
				_ = b.conn.setSealed(ctx, key, sealed) // where it fails the store is lost
			}
		}
	}
}

// Get implements rendezvous.Board.
func (b *doorBoard) Get(ctx context.Context, name string) ([]byte, error) {
	return b.conn.awaitBytes(ctx, b.key(onBoard+name), b.pause)
}

// tidy deletes what this agent has written of an examination that was called off: nobody reads it any more.
func (b *doorBoard) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.tidying)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.told {
		_ = b.conn.remove(ctx, slices.Collect(maps.Keys(b.said))...) // where it fails the store is lost
	}
	clear(b.said)
}

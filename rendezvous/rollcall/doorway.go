package rollcall

import (
	"context"
	"fmt"
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

// stop calls off what goes on. What the others may still read stays: the coordinator deletes it when all have said what they found.
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
	key := func(name string) string { return h.keys.door(term, order.Nonce, name) }
	in := rendezvous.Door{Round: order.Round, Rank: order.Rank, Size: order.Size, Standard: order.Standard}
	if order.Size > 1 {
		d.board = &doorBoard{conn: h.conn, key: key, pause: h.cfg.lookEvery(), tidying: h.cfg.KeepAlive}
		in.Board = d.board
	}
	board := d.board
	ctx, cancel := context.WithCancel(d.ctx)
	d.cancel = cancel
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
		found := foundRecord{Agent: h.id, Fit: err == nil}
		if board != nil {
			found.Written = board.handOver()
		}
		if saidErr := h.conn.set(telling, key(fmt.Sprint("found/", order.Rank)), found); saidErr != nil {
			h.log.Debug().Err(saidErr).Msg("what was found at the door is not told")
		}
		if err != nil {
			d.unfit = err
			d.refused(err)
		}
	})
}

// doorBoard is the board of an examination.
type doorBoard struct {
	conn    *records
	key     func(name string) string
	pause   time.Duration
	tidying time.Duration

	mu      sync.Mutex
	written []string // names
}

// Set implements rendezvous.Board.
func (b *doorBoard) Set(ctx context.Context, name string, value []byte) error {
	b.mu.Lock()
	b.written = append(b.written, name)
	b.mu.Unlock()
	return b.conn.setBytes(ctx, b.key(onBoard+name), value)
}

// Get implements rendezvous.Board.
func (b *doorBoard) Get(ctx context.Context, name string) ([]byte, error) {
	return b.conn.awaitBytes(ctx, b.key(onBoard+name), b.pause)
}

// onBoard begins the names of keys that are on a board.
const onBoard = "board/"

// handOver returns what this agent has written, which is for the coordinator to delete from now on.
func (b *doorBoard) handOver() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := b.written
	b.written = nil
	return names
}

// tidy deletes what this agent has written of an examination that was called off: nobody reads it any more.
func (b *doorBoard) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.tidying)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range b.written {
		_ = b.conn.remove(ctx, b.key(onBoard+name)) // where it fails the store is lost
	}
	b.written = nil
}

package membership

import (
	"context"

	"muster/rendezvous"
)

// board is where the agents of a round tell each other something. A store that is lost ends the round: the verdict says
// so.
type board struct{ r *round }

var _ rendezvous.Noter = board{}

// Board implements rendezvous.Exchange.
func (r *round) Board() rendezvous.Board {
	if r.a.Agents < 2 || r.a.Mixed {
		return nil
	}
	return board{r}
}

// RoundBoard implements rendezvous.Doorkeeper.
func (h *Handler) RoundBoard() rendezvous.Board {
	if h.round == nil || h.round.a.Mixed {
		return nil
	}
	return board{h.round}
}

func (b board) key(name string) string { return b.r.key(onBoard + name) }

// boardLooks is how often an agent looks whether its word on the board is still there: what is said there is heard
// soon, or never.
const boardLooks = 120

// Set implements rendezvous.Board.
func (b board) Set(ctx context.Context, key string, value []byte) error {
	key = b.key(key)
	b.r.noted(key)
	sealed := b.r.h.codec.sealBytes(key, value)
	// Whoever does not hear it takes this node for silent, and may blame it.
	b.r.insist(key, sealed, b.r.h.cfg.deadAfter()/2, boardLooks)
	return b.r.s.conn.setSealed(ctx, key, sealed)
}

// Note implements rendezvous.Noter.
func (b board) Note(ctx context.Context, key string, value []byte) error {
	key = b.key(key)
	b.r.noted(key)
	return b.r.s.conn.setSealed(ctx, key, b.r.h.codec.sealBytes(key, value))
}

// Get implements rendezvous.Board.
func (b board) Get(ctx context.Context, key string) ([]byte, error) {
	return b.r.s.conn.awaitBytes(ctx, b.key(key), b.r.pause())
}

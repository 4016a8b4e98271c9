package rollcall

import (
	"context"

	"muster/rendezvous"
)

// board is a round's part of the store. A store that is lost ends the round: the verdict says so.
type board struct{ r *round }

var _ rendezvous.Store = board{}

// Board implements rendezvous.Handler.
func (h *Handler) Board() rendezvous.Store {
	if h.round == nil || h.round.a.Mixed || h.round.a.Company < 2 {
		return nil
	}
	return board{h.round}
}

func (b board) key(name string) string { return b.r.key("board/" + name) }

func (b board) Set(ctx context.Context, key string, value []byte) error {
	return b.r.s.conn.Set(ctx, b.key(key), value)
}

func (b board) Get(ctx context.Context, key string) ([]byte, error) {
	return b.r.s.conn.Get(ctx, b.key(key))
}

func (b board) Wait(ctx context.Context, keys ...string) error {
	own := make([]string, len(keys))
	for i, k := range keys {
		own[i] = b.key(k)
	}
	return b.r.s.conn.Wait(ctx, own...)
}

func (b board) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return b.r.s.conn.Add(ctx, b.key(key), delta)
}

func (b board) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return b.r.s.conn.CompareAndSet(ctx, b.key(key), expected, desired)
}

func (b board) Delete(ctx context.Context, key string) (bool, error) {
	return b.r.s.conn.Delete(ctx, b.key(key))
}

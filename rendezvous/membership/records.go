package membership

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"muster/rendezvous"
)

// records is what agents tell each other through a store: each value is sealed on its way in and checked on its way
// out. Nothing else in this package writes to a store or believes what it reads there; the exceptions have names:
// counters, which are hints, the list of run ids (ids.go), and what belongs to agents of torchrun.
type records struct {
	conn  Conn
	store rendezvous.Store // conn, or a connection of its own to the same
	codec codec
}

func newRecords(conn Conn, c codec) *records { return &records{conn: conn, store: conn, codec: c} }

func (r *records) Close() error { return r.conn.Close() }

// reserved returns the same over a connection that no other call takes, where there is such a thing.
func (r *records) reserved() *records {
	own := *r
	if s, ok := r.conn.(rendezvous.Reserver); ok {
		own.store = s.Reserve()
	}
	return &own
}

// set stores v under key, in the place of what stands there.
func (r *records) set(ctx context.Context, key string, v any) error {
	return r.store.Set(ctx, key, r.codec.seal(key, v))
}

// stands reports whether value is what stands under key.
func (r *records) stands(ctx context.Context, key string, value []byte) (bool, error) {
	raw, err := peek(ctx, r.store, key)
	return err == nil && bytes.Equal(raw, value), err
}

// setSealed stores what is sealed already.
func (r *records) setSealed(ctx context.Context, key string, sealed []byte) error {
	return r.store.Set(ctx, key, sealed)
}

// swapSealed stores what is sealed already where was is, nil for nothing, and returns what stands there then.
func (r *records) swapSealed(ctx context.Context, key string, was, sealed []byte) ([]byte, error) {
	return r.store.CompareAndSet(ctx, key, was, sealed)
}

// record is one value to be stored.
type record struct {
	key   string
	value any
}

// setAll stores every record.
func (r *records) setAll(ctx context.Context, all []record) error {
	if many, ok := r.store.(rendezvous.Batcher); ok {
		const most = 512 // records in one request: it is taken in at one moment, and others wait
		for len(all) > 0 {
			n := min(len(all), most)
			pairs := make([]rendezvous.Pair, n)
			for i, a := range all[:n] {
				pairs[i] = rendezvous.Pair{Key: a.key, Value: r.codec.seal(a.key, a.value)}
			}
			if err := many.MultiSet(ctx, pairs...); err != nil {
				return err
			}
			all = all[n:]
		}
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for _, a := range all {
		g.Go(func() error { return r.set(ctx, a.key, a.value) })
	}
	return g.Wait()
}

// fanOut is how many requests are under way at once at a store that takes one key each.
const fanOut = 16

// found is a value as it stands in the store.
type found struct {
	raw    []byte // nil where there is none
	writer string
}

// claim stores v where nothing is, and decodes into out what stands there then.
func (r *records) claim(ctx context.Context, key string, v, out any) (found, error) {
	return r.replace(ctx, key, nil, v, out)
}

// replace stores v where was is, nil for nothing, and decodes into out what stands there then.
func (r *records) replace(ctx context.Context, key string, was []byte, v, out any) (found, error) {
	raw, err := r.store.CompareAndSet(ctx, key, was, r.codec.seal(key, v))
	if err != nil {
		return found{}, err
	}
	writer, err := r.codec.open(key, raw, out)
	return found{raw, writer}, err
}

// settle is claim for a key that must not be blocked: what nobody of this job has written there makes way.
func (r *records) settle(ctx context.Context, key string, body []byte) ([]byte, error) {
	var was []byte
	var err error
	for range 4 { // somebody may write there again and again
		var raw, counts []byte
		if raw, err = r.store.CompareAndSet(ctx, key, was, r.codec.sealBytes(key, body)); err != nil {
			return nil, err
		}
		if counts, _, err = r.codec.openBytes(key, raw); err == nil {
			return counts, nil
		}
		was = raw
	}
	return nil, err
}

// get waits until key exists and decodes its value into out.
func (r *records) get(ctx context.Context, key string, out any) (writer string, err error) {
	raw, err := r.store.Get(ctx, key)
	if err != nil {
		return "", err
	}
	return r.codec.open(key, raw, out)
}

// await is get that goes on waiting, with a pause before each look, where somebody has put there what it does not
// believe.
func (r *records) await(ctx context.Context, key string, pause time.Duration, out any) (writer string, err error) {
	err = insist(ctx, pause, func() (err error) {
		writer, err = r.get(ctx, key, out)
		return err
	})
	return writer, err
}

// awaitBytes is await for a value that is no JSON.
func (r *records) awaitBytes(ctx context.Context, key string, pause time.Duration) (body []byte, err error) {
	err = insist(ctx, pause, func() error {
		raw, err := r.store.Get(ctx, key)
		if err == nil {
			body, _, err = r.codec.openBytes(key, raw)
		}
		return err
	})
	return body, err
}

// insist calls f until it meets nothing that cannot be trusted, or ctx ends.
func insist(ctx context.Context, pause time.Duration, f func() error) error {
	for {
		err := f()
		if !isUntrusted(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w; %w", context.Cause(ctx), err)
		}
	}
}

// collect waits until take has accepted the value of every key; one that it does not accept is looked at again after
// pause.
func (r *records) collect(ctx context.Context, keys []string, pause time.Duration, take func(i int, raw []byte) bool) error {
	left := make([]int, len(keys))
	for i := range keys {
		left[i] = i
	}
	for {
		asked := make([]string, len(left))
		for n, i := range left {
			asked[n] = keys[i]
		}
		values, err := r.raws(ctx, asked)
		if err != nil {
			return err
		}
		var again []int
		for n, i := range left {
			if !take(i, values[n]) {
				again = append(again, i)
			}
		}
		if left = again; len(left) == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// raws waits for every key and returns what stands there, in order: in one request where the store has that. Who uses a
// value opens it.
func (r *records) raws(ctx context.Context, keys []string) ([][]byte, error) {
	if many, ok := r.store.(rendezvous.Batcher); ok {
		return many.MultiGet(ctx, keys...)
	}
	values := make([][]byte, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, k := range keys {
		g.Go(func() (err error) { values[i], err = r.store.Get(ctx, k); return err })
	}
	return values, g.Wait()
}

// current returns what stands under each of keys now, nil for nothing, without waiting; nobody else waits for them.
func (r *records) current(ctx context.Context, keys []string) ([][]byte, error) {
	values := make([][]byte, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, k := range keys {
		g.Go(func() (err error) { values[i], err = glance(ctx, r.store, k); return err })
	}
	return values, g.Wait()
}

// filled puts v where nothing is, and returns what stands under each of keys then.
func (r *records) filled(ctx context.Context, keys []string, v any) ([][]byte, error) {
	values := make([][]byte, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, k := range keys {
		g.Go(func() (err error) {
			values[i], err = r.store.CompareAndSet(ctx, k, nil, r.codec.seal(k, v))
			return err
		})
	}
	return values, g.Wait()
}

// peek decodes what is under a key that may not be there: found.raw is nil then.
func (r *records) peek(ctx context.Context, key string, out any) (found, error) {
	raw, err := peek(ctx, r.store, key)
	if err != nil || raw == nil {
		return found{}, err
	}
	writer, err := r.codec.open(key, raw, out)
	return found{raw, writer}, err
}

// glance is peek in one request, for a key that nobody waits for.
func (r *records) glance(ctx context.Context, key string, out any) (found, error) {
	raw, err := glance(ctx, r.store, key)
	if err != nil || raw == nil {
		return found{}, err
	}
	writer, err := r.codec.open(key, raw, out)
	return found{raw, writer}, err
}

// remove deletes keys.
func (r *records) remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if _, err := r.store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// draw takes the next number of a counter. The counter is a hint: what is written under a number is written where
// nothing is.
func (r *records) draw(ctx context.Context, key string) (int64, error) {
	return r.store.Add(ctx, key, 1)
}

// deposit writes v under the next number of a counter for which nothing stands yet, and returns that number. The
// counter may have been set back, or stand still: what is there stays. name makes the key of a number.
func deposit[T comparable](ctx context.Context, r *records, counter string, name func(n int64) string, v T,
	pause time.Duration,
) (int64, error) {
	for tries := 0; ; tries++ {
		n, err := r.draw(ctx, counter)
		if err != nil {
			return 0, err
		}
		var stands T // a new one: what a record leaves out must not be that of the one before
		if _, err = r.claim(ctx, name(n), v, &stands); storeFailed(err) {
			return 0, err
		}
		if err == nil && stands == v {
			return n, nil
		}
		if tries < 8 { // the next numbers may be free
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// drawn returns how often a counter was drawn from, as it says. Where it is no number it is set to least, and where it
// is less, too.
func (r *records) drawn(ctx context.Context, key string, least int64) (int64, error) {
	raw, err := glance(ctx, r.store, key)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if raw == nil {
		n, err = 0, nil
	}
	if err == nil && n >= least {
		return n, nil
	}
	_, err = r.store.CompareAndSet(ctx, key, raw, strconv.AppendInt(nil, least, 10)) // if it has changed meanwhile, we look again
	return least, err
}

// absent is what no key of ours holds.
const absent = "\x00absent"

// peek reads a key that may not be there; nil for none.
func peek(ctx context.Context, store rendezvous.Store, key string) ([]byte, error) {
	if c, ok := store.(rendezvous.Checker); ok {
		if there, err := c.Check(ctx, key); err != nil || !there {
			return nil, err
		}
	}
	return glance(ctx, store, key)
}

// glance is peek in one request, for a key that nobody waits for. A compare-and-set that expects something stores
// nothing where there is nothing.
func glance(ctx context.Context, store rendezvous.Store, key string) ([]byte, error) {
	value, err := store.CompareAndSet(ctx, key, []byte(absent), []byte(absent))
	if string(value) == absent {
		value = nil
	}
	return value, err
}

// Hosted reports whether an agent of the job runID serves store for its others, who have token, nil for none.
func Hosted(ctx context.Context, store rendezvous.Store, runID string, token []byte) bool {
	key := newKeys(runID).job("host")
	value, err := glance(ctx, store, key)
	if err != nil || value == nil {
		return false
	}
	var host hostRecord
	_, err = newCodec(runID, token, "").open(key, value, &host)
	return err == nil
}

// storeError returns err where it is of the store, and nil for what stands there.
func storeError(err error) error {
	if storeFailed(err) {
		return err
	}
	return nil
}

// storeFailed reports whether an error is of the store, and not of what stands there.
func storeFailed(err error) bool { return err != nil && !isUntrusted(err) }

// isClosed reports whether err is the end of the connection.
func isClosed(err error) bool { return errors.Is(err, rendezvous.ErrStoreClosed) }

// encoded is v as JSON.
func encoded(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode %T: %v", v, err))
	}
	return text
}

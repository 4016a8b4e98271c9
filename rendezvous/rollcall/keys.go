package rollcall

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"muster/rendezvous"
)

// KeyPrefix begins every key of ours. Servers keep them apart from those of the workers.
const KeyPrefix = "muster/"

// beatLeft is the heartbeat of an agent that has left.
const beatLeft = "left"

// keys makes the keys of one job.
type keys struct{ prefix string }

func newKeys(runID string) keys { return keys{KeyPrefix + escapeID(runID) + "/"} }

// escapeID makes a path element of a run id, which may be anything.
func escapeID(id string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(id)
}

func (k keys) job(name string) string   { return k.prefix + name }
func (k keys) beat(agent string) string { return k.prefix + "beat/" + agent }
func (k keys) join(t int, ticket int64) string {
	return k.term(t, "join/"+strconv.FormatInt(ticket, 10))
}

func (k keys) answer(t int, ticket int64) string {
	return k.term(t, "answer/"+strconv.FormatInt(ticket, 10))
}
func (k keys) term(t int, name string) string  { return fmt.Sprintf("%st%d/%s", k.prefix, t, name) }
func (k keys) round(n int, name string) string { return fmt.Sprintf("%s%d/%s", k.prefix, n, name) }
func (k keys) move(t int, name string) string  { return fmt.Sprintf("%smove/%d/%s", k.prefix, t, name) }

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// getAll waits for every key and returns their values in order: in one request where the store has that.
func getAll(ctx context.Context, s rendezvous.Store, keys []string) ([][]byte, error) {
	if many, ok := s.(rendezvous.Batcher); ok {
		return many.MultiGet(ctx, keys...)
	}
	values := make([][]byte, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, k := range keys {
		g.Go(func() (err error) { values[i], err = s.Get(ctx, k); return err })
	}
	return values, g.Wait()
}

// setAll stores every pair.
func setAll(ctx context.Context, s rendezvous.Store, pairs []rendezvous.Pair) error {
	if many, ok := s.(rendezvous.Batcher); ok {
		const most = 512 // pairs in one request: it is taken in at one moment, and others wait
		for len(pairs) > 0 {
			n := min(len(pairs), most)
			if err := many.MultiSet(ctx, pairs[:n]...); err != nil {
				return err
			}
			pairs = pairs[n:]
		}
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for _, p := range pairs {
		g.Go(func() error { return s.Set(ctx, p.Key, p.Value) })
	}
	return g.Wait()
}

// fanOut is how many requests are under way at once at a store that takes one key each.
const fanOut = 16

// both returns a context that ends with either, with the cause of whichever was first.
func both(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
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

// glance is peek in one request, for a key that nobody waits for. A compare-and-set that expects something stores nothing
// where there is nothing.
func glance(ctx context.Context, store rendezvous.Store, key string) ([]byte, error) {
	value, err := store.CompareAndSet(ctx, key, []byte(absent), []byte(absent))
	if string(value) == absent {
		value = nil
	}
	return value, err
}

// Hosted reports whether an agent of the job runID serves store for its others.
func Hosted(ctx context.Context, store rendezvous.Store, runID string) bool {
	value, err := glance(ctx, store, newKeys(runID).job("host"))
	return err == nil && value != nil
}

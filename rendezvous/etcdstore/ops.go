package etcdstore

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"muster/rendezvous"
)

// What one transaction may hold: etcd allows 128 operations unless it was told otherwise.
const (
	maxWrites    = 96
	maxTogether  = 1 << 20 // bytes
	firstBackoff = time.Millisecond
	longBackoff  = 500 * time.Millisecond
)

// Pair is a key and its value.
type Pair = rendezvous.Pair

func (s *Store) put(key string, v stored) clientv3.Op {
	return clientv3.OpPut(s.key(key), v.text, clientv3.WithLease(clientv3.LeaseID(s.id)), clientv3.WithPrevKV())
}

// Set implements rendezvous.Store.
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	if err := checkPairs("SET", Pair{Key: key, Value: value}); err != nil {
		return err
	}
	return s.setTogether(ctx, "SET", []Pair{{Key: key, Value: value}})
}

func checkPairs(what string, pairs ...Pair) error {
	for _, p := range pairs {
		if err := checkKeys(what, p.Key); err != nil {
			return err
		}
		if err := checkValues(p.Key, p.Value); err != nil {
			return err
		}
	}
	return nil
}

// MultiSet stores every pair, of two with the same key the last one: at one moment where there are at most 96 whose
// values take at most 1 MiB, else in that many at a time.
func (s *Store) MultiSet(ctx context.Context, pairs ...Pair) error {
	const what = "MULTI_SET"
	if len(pairs) > maxKeys {
		return fmt.Errorf("%s of %d keys exceeds the store's limit of %d", what, len(pairs), maxKeys)
	}
	if err := checkPairs(what, pairs...); err != nil {
		return err
	}
	last := make(map[string]int, len(pairs))
	for i, p := range pairs {
		last[p.Key] = i
	}
	var batch []Pair
	size := 0
	for i, p := range pairs {
		if last[p.Key] != i {
			continue
		}
		n := len(p.Key) + min(len(p.Value), maxPlain)
		if len(batch) == maxWrites || (len(batch) > 0 && size+n > maxTogether) {
			if err := s.setTogether(ctx, what, batch); err != nil {
				return err
			}
			batch, size = nil, 0
		}
		batch, size = append(batch, p), size+n
	}
	if len(batch) == 0 {
		return s.retry(ctx, what, "", func(context.Context) error { return nil }) // nothing to do, unless ctx or store has ended
	}
	return s.setTogether(ctx, what, batch)
}

func (s *Store) setTogether(ctx context.Context, what string, pairs []Pair) error {
	first := pairs[0].Key
	for {
		var w write
		var names []string
		for _, p := range pairs {
			v, err := s.upload(ctx, what, p.Key, p.Value)
			if err != nil {
				return err
			}
			w.conditions = append(w.conditions, v.needs...)
			w.then = append(w.then, s.put(p.Key, v))
			names = append(names, v.pieces)
		}
		out, err := s.write(ctx, what, first, w)
		if err != nil {
			return err
		}
		if out.applied {
			s.dropReplaced(ctx, out)
			return nil
		}
		for _, name := range names { // some vanished with the lease, before the key could refer to them
			s.dropPieces(ctx, name)
		}
	}
}

// Delete implements rendezvous.Store.
func (s *Store) Delete(ctx context.Context, key string) (bool, error) {
	const what = "DELETE"
	if err := checkKeys(what, key); err != nil {
		return false, err
	}
	out, err := s.write(ctx, what, key, write{
		conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(s.key(key)), ">", 0)},
		then:       []clientv3.Op{clientv3.OpDelete(s.key(key), clientv3.WithPrevKV())},
	})
	if err != nil {
		return false, err
	}
	s.dropReplaced(ctx, out)
	return out.applied, nil
}

// Add implements rendezvous.Store. Where many add to one key at the same time, each tries again after a random pause:
// they take as long as one after the other.
func (s *Store) Add(ctx context.Context, key string, delta int64) (int64, error) {
	const what = "ADD"
	if err := checkKeys(what, key); err != nil {
		return 0, err
	}
	old, err := s.readOne(ctx, what, key)
	if err != nil {
		return 0, err
	}
	for pause := firstBackoff; ; pause = min(2*pause, longBackoff) {
		var sum, rev int64
		if old != nil {
			value, err := s.content(ctx, what, key, old)
			if err != nil {
				return 0, err
			}
			if value == nil {
				if old, err = s.readOne(ctx, what, key); err != nil {
					return 0, err
				}
				continue
			}
			if sum, err = number(value); err != nil {
				return 0, wrap(what, key, err)
			}
			rev = old.ModRevision
		}
		sum += delta
		out, err := s.write(ctx, what, key, write{
			conditions: []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.key(key)), "=", rev)},
			then:       []clientv3.Op{s.put(key, stored{text: strconv.FormatInt(sum, 10)})},
			instead:    []clientv3.Op{clientv3.OpGet(s.key(key))},
		})
		if err != nil {
			return 0, err
		}
		if out.applied {
			s.dropReplaced(ctx, out)
			return sum, nil
		}
		old = out.answers[0].kv
		if pause > firstBackoff { // the first time somebody else was just a bit faster
			if err := s.idle(ctx, what, key, pause); err != nil {
				return 0, err
			}
			if old, err = s.readOne(ctx, what, key); err != nil {
				return 0, err
			}
		}
	}
}

func number(value []byte) (int64, error) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %.40q", errNumber, value)
	}
	return n, nil
}

// idle waits for about d.
func (s *Store) idle(ctx context.Context, what, key string, d time.Duration) error {
	bound, release := s.bind(ctx)
	defer release()
	if sleep(bound, d) != nil {
		return wrap(what, key, ended(ctx, s.life))
	}
	return nil
}

// CompareAndSet implements rendezvous.Store.
func (s *Store) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	const what = "COMPARE_SET"
	if err := checkKeys(what, key); err != nil {
		return nil, err
	}
	if err := checkValues(key, expected, desired); err != nil {
		return nil, err
	}
	at := s.key(key)
	// Most often one transaction does it: nothing expected and nothing there, or a value that can be compared as it is.
	condition := clientv3.Compare(clientv3.CreateRevision(at), "=", 0)
	if len(expected) > 0 {
		condition = clientv3.Compare(clientv3.Value(at), "=", plain(expected))
	}
	// judge returns the answer of a call that found kv, or sets the condition for the next attempt.
	judge := func(kv *mvccpb.KeyValue) ([]byte, error) {
		found, kv, err := s.newest(ctx, what, key, kv)
		switch {
		case err != nil:
			return nil, err
		case kv == nil && len(expected) > 0:
			return append([]byte{}, expected...), nil
		case kv == nil:
			condition = clientv3.Compare(clientv3.CreateRevision(at), "=", 0)
		case !bytes.Equal(found, expected):
			return found, nil
		default: // it is as expected, but not in a form that a condition can tell
			condition = clientv3.Compare(clientv3.ModRevision(at), "=", kv.ModRevision)
		}
		return nil, nil
	}
	if len(expected) > maxPlain {
		kv, err := s.readOne(ctx, what, key)
		if err != nil {
			return nil, err
		}
		if answer, err := judge(kv); answer != nil || err != nil {
			return answer, err
		}
	}
	for {
		v, err := s.upload(ctx, what, key, desired)
		if err != nil {
			return nil, err
		}
		out, err := s.write(ctx, what, key, write{
			conditions: append(v.needs, condition),
			then:       []clientv3.Op{s.put(key, v)},
			instead:    []clientv3.Op{clientv3.OpGet(at)},
		})
		if err != nil {
			return nil, err
		}
		if out.applied {
			s.dropReplaced(ctx, out)
			return append([]byte{}, desired...), nil
		}
		s.dropPieces(ctx, v.pieces)
		if answer, err := judge(out.answers[0].kv); answer != nil || err != nil {
			return answer, err
		}
	}
}

// newest returns the value in kv, or what replaced it meanwhile, and where it was found: nil for a missing key.
func (s *Store) newest(ctx context.Context, what, key string, kv *mvccpb.KeyValue) ([]byte, *mvccpb.KeyValue, error) {
	for kv != nil {
		value, err := s.content(ctx, what, key, kv)
		if err != nil || value != nil {
			return value, kv, err
		}
		if kv, err = s.readOne(ctx, what, key); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

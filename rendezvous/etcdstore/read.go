package etcdstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// readBatch is how many keys are read at once, and waited for at the same time.
const readBatch = 64

// watchLimit bounds the beginning of a watch, which a member does alone.
const watchLimit = 2 * time.Second

// Get implements rendezvous.Store. A Get that waited returns the value that the key was first seen with.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	values, err := s.await(ctx, "GET", true, []string{key})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// Wait implements rendezvous.Store. It has seen each key, not necessarily all at one moment.
func (s *Store) Wait(ctx context.Context, keys ...string) error {
	_, err := s.await(ctx, "WAIT", false, keys)
	return err
}

// MultiGet waits until every key exists and returns their values in order.
func (s *Store) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	return s.await(ctx, "MULTI_GET", true, keys)
}

// readOne returns what stands under key, nil for a missing key.
func (s *Store) readOne(ctx context.Context, what, key string) (*mvccpb.KeyValue, error) {
	kvs, err := s.read(ctx, what, true, []string{key})
	if err != nil {
		return nil, err
	}
	return kvs[0], nil
}

// read returns what stands under keys, at most readBatch of them, at one moment; nil for missing ones, and without
// values where they are not wanted.
func (s *Store) read(ctx context.Context, what string, values bool, keys []string) ([]*mvccpb.KeyValue, error) {
	ops := make([]clientv3.Op, len(keys))
	for i, k := range keys {
		if ops[i] = clientv3.OpGet(s.key(k)); !values {
			ops[i] = clientv3.OpGet(s.key(k), clientv3.WithKeysOnly())
		}
	}
	found := make([]*mvccpb.KeyValue, len(keys))
	err := s.retry(ctx, what, keys[0], func(ctx context.Context) error {
		resp, err := s.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return err
		}
		answers, err := answersOf((*txnResponse)(resp), len(ops), 0)
		for i := range answers {
			found[i] = answers[i].kv
		}
		return err
	})
	return found, err
}

// content returns the value in kv, nil where kv was replaced meanwhile.
func (s *Store) content(ctx context.Context, what, key string, kv *mvccpb.KeyValue) (value []byte, err error) {
	err = s.retry(ctx, what, key, func(ctx context.Context) (err error) {
		value, err = s.value(ctx, kv)
		return err
	})
	return value, err
}

// await returns once it has seen every key, with the values if they are wanted.
func (s *Store) await(ctx context.Context, what string, wanted bool, keys []string) ([][]byte, error) {
	if err := checkKeys(what, keys...); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return [][]byte{}, s.retry(ctx, what, "", func(context.Context) error { return nil }) // unless ctx or store has ended
	}
	values := make([][]byte, len(keys))
	for from := 0; from < len(keys); from += readBatch {
		batch := keys[from:min(from+readBatch, len(keys))]
		found, err := s.read(ctx, what, wanted, batch)
		if err != nil {
			return nil, err
		}
		if err := s.awaitBatch(ctx, what, wanted, batch, found, values[from:]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// awaitBatch fills in the values of keys, of which found was read.
func (s *Store) awaitBatch(ctx context.Context, what string, wanted bool, keys []string, found []*mvccpb.KeyValue, values [][]byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var first atomic.Pointer[error]
	for i, kv := range found {
		settle := func() {
			var err error
			if values[i], err = s.settle(ctx, what, wanted, keys[i], kv); err != nil && first.CompareAndSwap(nil, &err) {
				cancel(err)
			}
		}
		if kv != nil { // most often this takes no time
			settle()
			continue
		}
		wg.Go(settle)
	}
	wg.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

// settle returns the value of key, of which kv was read last.
func (s *Store) settle(ctx context.Context, what string, wanted bool, key string, kv *mvccpb.KeyValue) ([]byte, error) {
	for {
		if kv != nil {
			if !wanted {
				return nil, nil
			}
			value, err := s.content(ctx, what, key, kv)
			if err != nil || value != nil {
				return value, err
			}
		}
		var err error
		if kv, err = s.arrival(ctx, what, key); err != nil {
			return nil, err
		}
	}
}

// arrival waits until key is there. It begins to watch and then reads: a watch from a revision of the past, such as
// that of a read before it, is served by etcd every 100 ms only until it has caught up.
func (s *Store) arrival(ctx context.Context, what, key string) (*mvccpb.KeyValue, error) {
	for {
		kv, err := s.watchOnce(ctx, what, key)
		if kv != nil || err != nil {
			return kv, err
		}
		if err := s.idle(ctx, what, key, firstPause); err != nil {
			return nil, err
		}
	}
}

// watchOnce is arrival's one watch. It returns nil when the watch broke off.
func (s *Store) watchOnce(ctx context.Context, what, key string) (*mvccpb.KeyValue, error) {
	bound, release := s.bind(ctx)
	defer release() // ends the watch
	late := time.AfterFunc(watchLimit, func() {
		s.suspect()
		release()
	})
	events := s.client.Watch(bound, s.key(key), clientv3.WithCreatedNotify(), clientv3.WithFilterDelete()) // returns when it has begun
	late.Stop()
	seen := false
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				if err := ended(ctx, s.life); err != nil {
					return nil, wrap(what, key, s.because(err, nil))
				}
				s.cfg.Log.Debug().AnErr("error", resp.Err()).Msg("watch broke off")
				return s.readOne(ctx, what, key)
			}
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypePut {
					return e.Kv, nil
				}
			}
			if resp.Created && !seen {
				seen = true
				if kv, err := s.readOne(ctx, what, key); kv != nil || err != nil {
					return kv, err
				}
			}
		case <-bound.Done():
			if err := ended(ctx, s.life); err != nil {
				return nil, wrap(what, key, s.because(err, nil))
			}
			return s.readOne(ctx, what, key)
		}
	}
}

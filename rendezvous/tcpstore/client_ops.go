package tcpstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// build begins a request. It fails for a request that the server's generation does not have.
func (c *Client) build(o op) ([]byte, error) {
	code, ok := c.peer.gen.code(o)
	if !ok {
		return nil, fmt.Errorf("cannot %v: the store at %s is one of %v: %w", o, c.addr, c.peer.gen, errors.ErrUnsupported)
	}
	return []byte{code}, nil
}

func (c *Client) checkKey(key string) error {
	if len(key) > c.cfg.Limits.Key {
		return fmt.Errorf("key of %d bytes exceeds the store's limit of %d", len(key), c.cfg.Limits.Key)
	}
	return nil
}

func (c *Client) checkValue(key string, value []byte) error {
	if len(value) > c.cfg.Limits.Value {
		return fmt.Errorf("value of %d bytes for key %q exceeds the store's limit of %d", len(value), key, c.cfg.Limits.Value)
	}
	return c.checkKey(key)
}

// keyed returns the request o on key, followed by the values.
func (c *Client) keyed(o op, key string, values ...[]byte) ([]byte, error) {
	b, err := c.build(o)
	if err != nil {
		return nil, err
	}
	b = appendBytes(b, key)
	if err := c.checkKey(key); err != nil {
		return nil, err
	}
	for _, v := range values {
		if err := c.checkValue(key, v); err != nil {
			return nil, err
		}
		b = appendBytes(b, v)
	}
	return b, nil
}

// counted returns the request o on keys.
func (c *Client) counted(o op, keys []string) ([]byte, error) {
	b, err := c.build(o)
	if err != nil {
		return nil, err
	}
	if len(keys) > c.cfg.Limits.KeysPerReq {
		return nil, fmt.Errorf("%v of %d keys exceeds the store's limit of %d", o, len(keys), c.cfg.Limits.KeysPerReq)
	}
	b = appendU64(b, uint64(len(keys)))
	for _, k := range keys {
		if err := c.checkKey(k); err != nil {
			return nil, err
		}
		b = appendBytes(b, k)
	}
	return b, nil
}

// confirm follows a request that has no answer with one that has, so that a call does not succeed before the server
// has seen it.
func (c *Client) confirm(ctx context.Context, o op, key string, request []byte) error {
	if c.peer.ping {
		request = binary.LittleEndian.AppendUint32(append(request, byte(opPing)), nonce)
		return c.call(ctx, o, key, step{request: request, read: func(r *bufio.Reader) error {
			var b [4]byte
			for i := range b {
				if err := readByte(&b[i])(r); err != nil {
					return err
				}
			}
			if n := binary.LittleEndian.Uint32(b[:]); n != nonce {
				return fmt.Errorf("%w: PING gives %#x", errAnswer, n)
			}
			return nil
		}})
	}
	code, _ := c.peer.gen.code(opNumKeys) // every generation has it
	var n int64
	return c.call(ctx, o, key, step{request: append(request, code), read: readInt(&n)})
}

func firstOf(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}

// waitStep waits until every key is there.
func (c *Client) waitStep(keys []string) (step, error) {
	b, err := c.counted(opWait, keys)
	return step{request: b, read: readStop, waits: true}, err
}

func readStop(r *bufio.Reader) error {
	b, err := r.ReadByte()
	if err == nil && b != replyStop {
		return fmt.Errorf("%w: %d to a wait", errAnswer, b)
	}
	return err
}

// Set implements rendezvous.Store.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	b, err := c.keyed(opSet, key, value)
	if err != nil {
		return err
	}
	return c.confirm(ctx, opSet, key, b)
}

// Get implements rendezvous.Store. A key that is deleted while Get runs gives an empty value.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	wait, err := c.waitStep([]string{key})
	if err != nil {
		return nil, err
	}
	b, err := c.keyed(opGet, key)
	if err != nil {
		return nil, err
	}
	err = c.call(ctx, opGet, key, wait, step{request: b, read: c.readValue(key, &value)})
	return value, err
}

// Wait implements rendezvous.Store.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	wait, err := c.waitStep(keys)
	if err != nil {
		return err
	}
	return c.call(ctx, opWait, firstOf(keys), wait)
}

// Add implements rendezvous.Store. The server closes the connection if the value under key is no number.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	b, err := c.keyed(opAdd, key)
	if err != nil {
		return 0, err
	}
	err = c.call(ctx, opAdd, key, step{request: appendU64(b, uint64(delta)), read: readInt(&sum)})
	return sum, err
}

// CompareAndSet implements rendezvous.Store.
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	b, err := c.keyed(opCompareSet, key, expected, desired)
	if err != nil {
		return nil, err
	}
	err = c.call(ctx, opCompareSet, key, step{request: b, read: c.readValue(key, &value)})
	return value, err
}

// Delete implements rendezvous.Store.
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	b, err := c.keyed(opDelete, key)
	if err != nil {
		return false, err
	}
	var n int64
	err = c.call(ctx, opDelete, key, step{request: b, read: readInt(&n)})
	return n > 0, err
}

// Check reports whether every key exists; a queue that is not empty counts as one.
func (c *Client) Check(ctx context.Context, keys ...string) (bool, error) {
	b, err := c.counted(opCheck, keys)
	if err != nil {
		return false, err
	}
	var answer byte
	err = c.call(ctx, opCheck, firstOf(keys), step{request: b, read: readByte(&answer)})
	return err == nil && answer == replyStop, err
}

// Append appends value to what key holds, nothing if it does not exist. Servers of PyTorch 2.0 and older do not have
// it: errors.ErrUnsupported.
func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	b, err := c.keyed(opAppend, key, value)
	if err != nil {
		return err
	}
	return c.confirm(ctx, opAppend, key, b)
}

// MultiGet waits until every key exists and returns their values in order. Servers of PyTorch 2.0 and older do not have
// it: errors.ErrUnsupported.
func (c *Client) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	wait, err := c.waitStep(keys)
	if err != nil {
		return nil, err
	}
	b, err := c.counted(opMultiGet, keys)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, len(keys))
	err = c.call(ctx, opMultiGet, firstOf(keys), wait, step{request: b, read: func(r *bufio.Reader) error {
		for i := range values {
			if err := c.readValue(keys[i], &values[i])(r); err != nil {
				return err
			}
		}
		return nil
	}})
	return values, err
}

// Pair is a key and its value.
type Pair = rendezvous.Pair

// MultiSet stores every pair; our server does so at one moment. Servers of PyTorch 2.0 and older do not have it:
// errors.ErrUnsupported.
func (c *Client) MultiSet(ctx context.Context, pairs ...Pair) error {
	b, err := c.build(opMultiSet)
	if err != nil {
		return err
	}
	if len(pairs) > c.cfg.Limits.KeysPerReq {
		return fmt.Errorf("%v of %d keys exceeds the store's limit of %d", opMultiSet, len(pairs), c.cfg.Limits.KeysPerReq)
	}
	b = appendU64(b, uint64(len(pairs)))
	first := ""
	for i, p := range pairs {
		if err := c.checkValue(p.Key, p.Value); err != nil {
			return err
		}
		if i == 0 {
			first = p.Key
		}
		b = appendBytes(appendBytes(b, p.Key), p.Value)
	}
	return c.confirm(ctx, opMultiSet, first, b)
}

// NumKeys returns how many keys the store holds, queues left out.
func (c *Client) NumKeys(ctx context.Context) (n int64, err error) {
	b, err := c.build(opNumKeys)
	if err != nil {
		return 0, err
	}
	err = c.call(ctx, opNumKeys, "", step{request: b, read: readInt(&n)})
	return n, err
}

const olderHint = "a store that does not know this request closes the connection: queues need PyTorch 2.8 with its default backend, " +
	"LIST_KEYS 2.10, BARRIER 2.12"

// keyCost is about what a key in a list occupies beside its bytes: the string itself, with what growing the list leaves
// unused, and the rounding of its allocation.
const keyCost = 48

// ListKeys returns every key, in no order. It fails for keys beyond the limit of the client, and for a list that would
// occupy more than 512 MiB. A store of PyTorch 2.9 or older closes the connection.
func (c *Client) ListKeys(ctx context.Context) ([]string, error) {
	b, err := c.build(opListKeys)
	if err != nil {
		return nil, err
	}
	var list []string
	err = c.call(ctx, opListKeys, "", step{request: b, read: func(r *bufio.Reader) error {
		var n int64
		if err := readInt(&n)(r); err != nil {
			return err
		}
		if n < 0 || n > maxList/keyCost {
			return fmt.Errorf("%w: %d keys", errAnswer, n)
		}
		left := maxList - n*keyCost
		for range n {
			var k []byte
			if err := readBytes(&k, int64(c.cfg.Limits.Key))(r); err != nil {
				return err
			}
			if left -= int64(len(k)); left < 0 {
				return fmt.Errorf("%w: %d keys that occupy more than %d bytes", errAnswer, n, maxList)
			}
			list = append(list, string(k))
		}
		return nil
	}})
	return list, errhint.With(err, olderHint)
}

// QueuePush appends value to the queue key, which is apart from the value of that key. A store of PyTorch 2.7 or older,
// or with the legacy backend, closes the connection.
func (c *Client) QueuePush(ctx context.Context, key string, value []byte) error {
	b, err := c.keyed(opQueuePush, key, value)
	if err != nil {
		return err
	}
	return errhint.With(c.confirm(ctx, opQueuePush, key, b), olderHint)
}

// QueuePop takes the oldest element of the queue key, and waits for one if there is none. Where the queue's name is
// also that of a key, the store cannot tell when there is one: QueuePop asks again then, every 50 ms in the end.
func (c *Client) QueuePop(ctx context.Context, key string) (value []byte, err error) {
	wait, err := c.waitStep([]string{key})
	if err != nil {
		return nil, err
	}
	b, err := c.keyed(opQueuePop, key)
	if err != nil {
		return nil, err
	}
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		var had int64
		pop := step{request: b, read: func(r *bufio.Reader) error {
			if err := readInt(&had)(r); err != nil || had == 0 {
				return err
			}
			return readBytes(&value, maxReply)(r)
		}}
		if err := c.call(ctx, opQueuePop, key, wait, pop); err != nil {
			return nil, errhint.With(err, olderHint)
		}
		if had > 0 {
			return value, nil
		}
		// Somebody else was faster, or it is a key that ends the wait, at once whenever we ask.
		select {
		case <-time.After(delay):
		case <-c.life.Done(): // the next call says so
		case <-ctx.Done():
		}
	}
}

// QueueLen returns the number of elements in the queue key.
func (c *Client) QueueLen(ctx context.Context, key string) (n int64, err error) {
	b, err := c.keyed(opQueueLen, key)
	if err != nil {
		return 0, err
	}
	err = c.call(ctx, opQueueLen, key, step{request: b, read: readInt(&n)})
	return n, errhint.With(err, olderHint)
}

// Barrier returns once world callers have named key. The key counts them and stays, so a name serves once; a caller
// that gives up has been counted. A store of PyTorch 2.11 or older closes the connection.
func (c *Client) Barrier(ctx context.Context, key string, world int) error {
	b, err := c.keyed(opBarrier, key)
	if err != nil {
		return err
	}
	err = c.call(ctx, opBarrier, key, step{request: appendU64(b, uint64(world)), read: readStop, waits: true})
	return errhint.With(err, olderHint)
}

// Package memstore is a rendezvous.Store in the memory of one process, for tests and for the simulation of thousands of
// agents: no socket, no goroutine and no timer of its own, so it also runs under testing/synctest.
//
// It keeps the contract of rendezvous.Store (storetest), and answers as a tcpstore.Client with a server of ours does,
// with the same limits and the same errors, so that what an agent meets here it meets there. Two things are different:
// nothing takes time, and a Get that waited returns the value as it was set first, where the TCP client asks for it
// afterwards and may see a later one, or an empty one if the key is gone again. Queues, barriers and lists of keys it
// does not have.
package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"

	"muster/rendezvous"
)

// What a request may hold: the defaults of tcpstore.Limits.
const (
	maxKey   = 8 << 10
	maxValue = 8 << 20
	maxKeys  = 128 << 10
)

// Space is what clients share: keys with their values, and who waits for a key. Its methods are safe for concurrent
// use.
type Space struct {
	mu      sync.Mutex
	keys    map[string][]byte             // a value is replaced as a whole, its bytes never change
	waits   map[string]map[*wait]struct{} // by a key that is not there; no empty ones
	clients map[*Client]struct{}          // the open ones
	closed  bool
	tamper  func(key string, value []byte) (stored []byte, store bool)
}

// wait is a Get or a Wait that has not got all its keys.
type wait struct {
	missing int           // keys that it has not seen; guarded by Space.mu
	value   []byte        // of the last of them; written before done is closed
	done    chan struct{} // closed when missing has become 0
}

// NewSpace returns an empty store.
func NewSpace() *Space {
	s := &Space{clients: make(map[*Client]struct{})}
	s.clearLocked()
	return s
}

func (s *Space) clearLocked() {
	s.keys, s.waits = make(map[string][]byte), make(map[string]map[*wait]struct{})
}

var (
	errClosedHere = errors.New("closed here")
	errReset      = errors.New("the store was emptied")
	errEnded      = errors.New("the store has ended")
	errNoNumber   = errors.New("the value is no number")
)

// Client returns another client. The client of a Space that was closed is closed.
func (s *Space) Client() *Client {
	c := &Client{space: s, gone: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c] = struct{}{}
	if s.closed {
		c.failLocked(errEnded)
	}
	return c
}

// Reset drops every key and closes every client, as tcpstore.Server.Reset does. Clients that are opened afterwards find
// an empty store.
func (s *Space) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(errReset)
}

// Close is Reset for good: it is what the end of the store's host looks like. It may be called again.
func (s *Space) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.dropLocked(errEnded)
	return nil
}

func (s *Space) dropLocked(why error) {
	for c := range s.clients {
		c.failLocked(why)
	}
	s.clearLocked()
}

// NumKeys returns how many keys the store holds.
func (s *Space) NumKeys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

// Tamper has f see every value that clients store, and say what is stored in its place, or that nothing is, while the
// client is told that it was stored: whoever controls a store can do that. f runs while the space is locked, and uses
// no client of it.
func (s *Space) Tamper(f func(key string, value []byte) (stored []byte, store bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tamper = f
}

// Put stores value under key as a client does, but past Tamper; nil deletes the key.
func (s *Space) Put(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == nil {
		delete(s.keys, key)
		return
	}
	s.putLocked(key, own(value))
}

// Keys returns what the space holds.
func (s *Space) Keys() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.keys)
}

// setLocked stores value, which belongs to the space from here on, and wakes who waits for key.
func (s *Space) setLocked(key string, value []byte) {
	if s.tamper != nil {
		stored, store := s.tamper(key, value)
		if !store {
			return
		}
		value = own(stored)
	}
	s.putLocked(key, value)
}

func (s *Space) putLocked(key string, value []byte) {
	s.keys[key] = value
	for w := range s.waits[key] {
		if w.missing--; w.missing == 0 {
			w.value = value
			close(w.done)
		}
	}
	delete(s.waits, key)
}

// addWaitLocked enters w for each of keys that is missing.
func (s *Space) addWaitLocked(w *wait, keys []string) {
	for _, k := range keys {
		if value, ok := s.keys[k]; ok {
			w.value = value
			continue
		}
		if s.waits[k] == nil {
			s.waits[k] = make(map[*wait]struct{})
		}
		if _, twice := s.waits[k][w]; !twice {
			s.waits[k][w] = struct{}{}
			w.missing++
		}
	}
	if w.missing == 0 {
		close(w.done)
	}
}

func (s *Space) dropWait(w *wait, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		delete(s.waits[k], w)
		if len(s.waits[k]) == 0 {
			delete(s.waits, k)
		}
	}
}

// Client is one user of a Space, as a tcpstore.Client is one of a server. Methods are safe for concurrent use. Keys and
// values are copied on their way in and out. Once the client or its space is closed, every call returns
// rendezvous.ErrStoreClosed.
type Client struct {
	space *Space
	gone  chan struct{} // closed with the client
	err   error         // why the client is closed, nil while it is open; guarded by Space.mu
}

var _ rendezvous.Store = (*Client)(nil)

// Close ends the client. Calls in progress return rendezvous.ErrStoreClosed. It may be called again.
func (c *Client) Close() error {
	c.space.mu.Lock()
	defer c.space.mu.Unlock()
	c.failLocked(errClosedHere)
	return nil
}

func (c *Client) failLocked(why error) {
	if c.err == nil {
		c.err = why
		close(c.gone)
		delete(c.space.clients, c)
	}
}

func (c *Client) closedErrorLocked() error {
	return fmt.Errorf("%w: %w", rendezvous.ErrStoreClosed, c.err)
}

func wrap(what, key string, err error) error {
	return fmt.Errorf("cannot %s %q: %w", what, key, err)
}

func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("key of %d bytes exceeds the store's limit of %d", len(key), maxKey)
	}
	return nil
}

func checkValues(key string, values ...[]byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	for _, v := range values {
		if len(v) > maxValue {
			return fmt.Errorf("value of %d bytes for key %q exceeds the store's limit of %d", len(v), key, maxValue)
		}
	}
	return nil
}

// own returns a copy of b that is not nil.
func own(b []byte) []byte { return append([]byte{}, b...) }

// do calls f with the space locked. what and key are for the error.
func (c *Client) do(ctx context.Context, what, key string, f func(s *Space)) error {
	if ctx.Err() != nil {
		return wrap(what, key, context.Cause(ctx))
	}
	c.space.mu.Lock()
	defer c.space.mu.Unlock()
	if c.err == nil {
		f(c.space)
	}
	if c.err != nil {
		return wrap(what, key, c.closedErrorLocked())
	}
	return nil
}

// await returns once every key has been there, with the value of the last of them.
func (c *Client) await(ctx context.Context, what string, keys ...string) ([]byte, error) {
	first := ""
	for i, k := range keys {
		if i == 0 {
			first = k
		}
		if err := checkKey(k); err != nil {
			return nil, err
		}
	}
	w := &wait{done: make(chan struct{})}
	if err := c.do(ctx, what, first, func(s *Space) { s.addWaitLocked(w, keys) }); err != nil {
		return nil, err
	}
	select {
	case <-w.done:
		return w.value, nil
	case <-ctx.Done():
		c.space.dropWait(w, keys)
		return nil, wrap(what, first, context.Cause(ctx))
	case <-c.gone:
		c.space.dropWait(w, keys)
		c.space.mu.Lock()
		defer c.space.mu.Unlock()
		return nil, wrap(what, first, c.closedErrorLocked())
	}
}

// Set implements rendezvous.Store.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	if err := checkValues(key, value); err != nil {
		return err
	}
	value = own(value)
	return c.do(ctx, "SET", key, func(s *Space) { s.setLocked(key, value) })
}

// Get implements rendezvous.Store.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := c.await(ctx, "GET", key)
	if err != nil {
		return nil, err
	}
	return own(value), nil
}

// Wait implements rendezvous.Store.
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	if len(keys) > maxKeys {
		return fmt.Errorf("WAIT of %d keys exceeds the store's limit of %d", len(keys), maxKeys)
	}
	_, err := c.await(ctx, "WAIT", keys...)
	return err
}

// Add implements rendezvous.Store. It closes the client if the value under key is no number, because a server closes
// the connection then.
func (c *Client) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	err = c.do(ctx, "ADD", key, func(s *Space) {
		value, ok := s.keys[key]
		if ok {
			n, err := stoll(value)
			if err != nil {
				c.failLocked(err)
				return
			}
			sum = n
		}
		sum += delta
		s.setLocked(key, strconv.AppendInt(nil, sum, 10))
	})
	return sum, err
}

// CompareAndSet implements rendezvous.Store.
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	if err := checkValues(key, expected, desired); err != nil {
		return nil, err
	}
	desired = own(desired)
	err = c.do(ctx, "COMPARE_SET", key, func(s *Space) {
		old, ok := s.keys[key]
		switch {
		case !ok && len(expected) > 0:
			value = expected
		case !ok || bytes.Equal(old, expected):
			s.setLocked(key, desired)
			value = desired
		default:
			value = old
		}
	})
	if err != nil {
		return nil, err
	}
	return own(value), nil
}

// Delete implements rendezvous.Store.
func (c *Client) Delete(ctx context.Context, key string) (there bool, err error) {
	if err := checkKey(key); err != nil {
		return false, err
	}
	err = c.do(ctx, "DELETE_KEY", key, func(s *Space) {
		_, there = s.keys[key]
		delete(s.keys, key)
	})
	return there, err
}

// stoll reads a number as our server and PyTorch's do, with C++'s std::stoll: leading blanks are skipped, and what
// follows the digits is ignored.
func stoll(b []byte) (int64, error) {
	b = bytes.TrimLeft(b, " \t\n\v\f\r")
	end := 0
	if end < len(b) && (b[end] == '+' || b[end] == '-') {
		end++
	}
	for end < len(b) && b[end] >= '0' && b[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(b[:end]), 10, 64)
	if err != nil {
		return 0, errNoNumber
	}
	return n, nil
}

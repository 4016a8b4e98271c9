package rendezvous

import (
	"context"
	"errors"
)

// Store is the one meeting place of a job: whatever agents tell each other goes through it. Our TCP store implements
// it, and etcd does. Keys and values are arbitrary bytes; a key has no structure beyond what its users agree on.
//
// Every call ends when ctx ends, with context.Cause(ctx). The methods are safe for concurrent use.
type Store interface {
	// Set stores value under key and wakes whoever waits for key.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Wait returns once every key exists.
	Wait(ctx context.Context, keys ...string) error
	// Add adds delta to the decimal number under key (a missing key counts as 0) and returns the sum.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// CompareAndSet stores desired if the value under key equals expected (an empty expected also matches a missing
	// key) and returns the value that stands there afterwards. For a missing key and a non-empty expected nothing is
	// stored and expected comes back, as PyTorch's stores answer.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// Delete removes key and reports whether it was there.
	Delete(ctx context.Context, key string) (bool, error)
}

// ErrStoreClosed is returned by a Store whose connection or server has ended; it is not reopened by itself.
var ErrStoreClosed = errors.New("store is closed")

// Pair is a key and its value.
type Pair struct {
	Key   string
	Value []byte
}

// Checker is a Store that tells without waiting whether keys exist. PyTorch's own server wakes who waits for a key when
// a compare-and-set of the missing key fails (2.15.0, observed): there it is the only way to ask for one that others
// wait for.
type Checker interface {
	Store
	// Check reports whether every key exists.
	Check(ctx context.Context, keys ...string) (bool, error)
}

// Batcher is a Store that takes many keys in one request.
type Batcher interface {
	Store
	// MultiGet waits until every key exists and returns their values in order.
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)
	// MultiSet stores every pair.
	MultiSet(ctx context.Context, pairs ...Pair) error
}

// Reserver is a Store that can keep a connection for one user.
type Reserver interface {
	Store
	// Reserve returns the same store over a connection that no other call takes: what is asked through it does not wait
	// until one is made, which takes several round trips. It is closed with the store.
	Reserve() Store
}

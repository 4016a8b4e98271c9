package rendezvous

import (
	"context"
	"errors"
)

// Store is the one meeting place of a job: whatever agents tell each other goes through it. Our TCP store implements
// it, etcd will. Keys and values are arbitrary bytes; a key has no structure beyond what its users agree on.
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

package etcdstore

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Limits that tests stay at or go beyond.
const (
	MaxPlain  = maxPlain
	MaxValue  = maxValue
	MaxKey    = maxKey
	ReadBatch = readBatch
	MaxWrites = maxWrites
)

// ErrNumber is what Add returns for a value that is no number.
var ErrNumber = errNumber

// Intercept makes every call of the client go through f.
func (c *Config) Intercept(f grpc.UnaryClientInterceptor) {
	c.dial = append(c.dial, grpc.WithChainUnaryInterceptor(f))
}

// Raw returns how many keys the cluster holds that begin with prefix.
func (s *Store) Raw(ctx context.Context, prefix string) (int64, error) {
	resp, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

// Text returns what the cluster holds under the user's key.
func (s *Store) Text(ctx context.Context, key string) (string, error) {
	resp, err := s.client.Get(ctx, s.key(key))
	if err != nil || len(resp.Kvs) == 0 {
		return "", err
	}
	return string(resp.Kvs[0].Value), nil
}

// LeaseID returns the lease of the job.
func (s *Store) LeaseID() int64 { return s.id }

// LeaseLeft returns for how long the job's lease lives without being renewed, negative when it is gone.
func (s *Store) LeaseLeft(ctx context.Context) (time.Duration, error) {
	resp, err := s.client.TimeToLive(ctx, clientv3.LeaseID(s.id))
	if err != nil {
		return 0, err
	}
	return time.Duration(resp.TTL) * time.Second, nil
}

// Slots returns how many slots no call uses.
func (s *Store) Slots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots)
}

// HasWrites says whether the request of a transaction changes something.
func HasWrites(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && len(txn.Compare) > 0
}

// Plant puts text under the user's key as anybody can who reaches a cluster without users.
func (s *Store) Plant(ctx context.Context, key, text string) error {
	_, err := s.client.Put(ctx, s.key(key), text)
	return err
}

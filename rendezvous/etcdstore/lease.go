package etcdstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseID is the lease of a job. Whoever knows the job knows its lease, so the stores need not agree on one first.
func leaseID(prefix, job string) int64 {
	sum := sha256.Sum256([]byte(prefix + "\x00" + job))
	return max(1, int64(binary.BigEndian.Uint64(sum[:8])&math.MaxInt64)) // 0 would let etcd choose one
}

// join makes sure that the lease of the job is there: it grants it, or finds that somebody has and renews it.
func (s *Store) join(ctx context.Context) error {
	_, err := s.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: s.id, TTL: int64(s.cfg.LeaseTTL / time.Second)})
	if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) {
		return err
	}
	// It may be one that has expired and whose keys are about to go: then this fails, and the next attempt makes it
	// anew.
	_, err = s.renew(ctx)
	return err
}

// renew keeps the lease alive once, and returns for how long it is then. etcd's own KeepAliveOnce asks without a pause
// for as long as there is no leader.
func (s *Store) renew(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := s.lease.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: s.id}); err != nil {
		return 0, fmt.Errorf("cannot ask for the lease: %w", err)
	}
	answer, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	if answer.TTL <= 0 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(answer.TTL) * time.Second, nil
}

// keepAlive renews the lease until the store is closed. A lease that is lost, because no store of the job could reach
// the cluster for longer than it lives, is granted anew; the keys are gone then.
func (s *Store) keepAlive() {
	ttl, failed := s.cfg.LeaseTTL, time.Duration(0)
	for {
		pause := ttl / 3
		if failed > 0 {
			pause = min(failed, pause)
		}
		if sleep(s.life, pause) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(s.life), min(attemptLimit, ttl/2))
		var left time.Duration
		err := s.loggedIn(ctx, func(ctx context.Context) (err error) {
			left, err = s.renew(ctx)
			return err
		})
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			err = s.rejoin(ctx)
		}
		cancel()
		switch {
		case err == nil && left > 0:
			ttl, failed = min(left, s.cfg.LeaseTTL), 0
		case err == nil:
			failed = 0
		case s.life.Err() == nil:
			s.cfg.Log.Debug().Err(err).Msg("lease not renewed yet")
			failed = min(max(2*failed, firstPause), longPause)
		}
	}
}

// rejoin joins a lease that was lost.
func (s *Store) rejoin(ctx context.Context) error {
	if err := s.join(ctx); err != nil {
		return err
	}
	s.cfg.Log.Warn().Str("job", s.cfg.Lease).Msg("the job's lease in etcd was lost, and every key with it; it is there again")
	return nil
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// How a write is applied once.
//
// When a leader dies, the client cannot tell whether what it had asked for was done, or will be done later by a request
// that is still on its way. So each write of ours is one transaction that also changes a key of our own, its slot, on
// the condition that the slot is as we last saw it. Of all copies of a transaction at most one can be applied, and when
// a copy is refused because the slot has moved, an earlier one was. A slot is used by one call at a time; a call that
// ends without knowing does not give it back.
//
// A transaction that is refused for a reason of its own (another value stands there) is no danger either: when a copy
// of it may still be on its way, the refusal moves the slot, and the copy finds nothing to do for ever.

// What a slot holds.
const (
	applied = "applied" // the last transaction
	fenced  = "fenced"  // one was refused, its copies with it
)

// slot is a key of this store alone.
type slot struct {
	key string
	rev int64 // when the key was last changed, 0 while it is missing
}

// write is a transaction: then is done if every condition holds, else instead.
type write struct {
	conditions    []clientv3.Cmp
	then, instead []clientv3.Op
}

// outcome is what became of a write.
type outcome struct {
	applied bool
	rev     int64
	// answers are those of then or instead; none where an earlier copy was applied whose answer was lost.
	answers []answer
}

// answer is what one operation of a transaction returned.
type answer struct {
	kv  *mvccpb.KeyValue // a Get's, nil for a missing key
	old []byte           // the value that a Put or Delete replaced, where that was asked for
}

// errAgain is an attempt that found out something, so that the next one can do better.
var errAgain = errors.New("the request must be sent again")

func (s *Store) takeSlot() *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.slots); n > 0 {
		sl := s.slots[n-1]
		s.slots = s.slots[:n-1]
		return sl
	}
	s.lastSlot++
	return &slot{key: s.ownKey(slotKeys, fmt.Sprintf("%s/%d", s.name, s.lastSlot))}
}

func (s *Store) giveBack(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots = append(s.slots, sl)
}

// write performs w once. It returns when that has been done or refused; with an error it may have been done.
func (s *Store) write(ctx context.Context, what, key string, w write) (outcome, error) {
	sl := s.takeSlot()
	var out outcome
	unsure := false
	err := s.retry(ctx, what, key, func(ctx context.Context) error {
		var err error
		out, err = s.commit(ctx, sl, w, unsure)
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
			if err := s.rejoin(ctx); err != nil {
				return err // nothing was sent since the lease was missed
			}
			return errAgain
		case errors.Is(err, errAgain):
			unsure = false
		case err != nil && !final(err):
			unsure = true
		}
		return err
	})
	if err == nil || (!unsure && final(err)) {
		s.giveBack(sl)
	}
	return out, err
}

// commit sends w under sl. unsure says that a copy of it may be on its way.
func (s *Store) commit(ctx context.Context, sl *slot, w write, unsure bool) (outcome, error) {
	lease := clientv3.WithLease(clientv3.LeaseID(s.id))
	unmoved := clientv3.Compare(clientv3.ModRevision(sl.key), "=", sl.rev)
	conditions := append([]clientv3.Cmp{unmoved}, w.conditions...)
	then := append([]clientv3.Op{clientv3.OpPut(sl.key, applied, lease)}, w.then...)
	instead := append([]clientv3.Op{clientv3.OpGet(sl.key)}, w.instead...)
	if unsure {
		// Unless another copy has moved the slot: what that one wrote there must not be lost.
		instead = append(instead, clientv3.OpTxn([]clientv3.Cmp{unmoved}, []clientv3.Op{clientv3.OpPut(sl.key, fenced, lease)}, nil))
	}
	resp, err := s.client.Txn(ctx).If(conditions...).Then(then...).Else(instead...).Commit()
	if err != nil {
		return outcome{}, err
	}
	rev := resp.Header.Revision
	answers, err := answersOf((*txnResponse)(resp), len(then), len(instead))
	if err != nil {
		return outcome{}, err
	}
	if resp.Succeeded {
		sl.rev = rev
		return outcome{applied: true, rev: rev, answers: answers[1:]}, nil
	}
	was := slot{}
	state := answers[0].kv
	if state != nil {
		was.rev = state.ModRevision
	}
	moved := was.rev != sl.rev
	if sl.rev = was.rev; !moved && unsure {
		sl.rev = rev // by the fence
	}
	switch {
	case !moved:
		return outcome{rev: rev, answers: answers[1 : 1+len(w.instead)]}, nil
	case state != nil && string(state.Value) == applied:
		return outcome{applied: true, rev: was.rev}, nil
	default:
		// Fenced by an earlier attempt, or gone with the lease and all that the job had stored: in both cases nothing
		// of this write is there, and nothing on its way can be applied.
		return outcome{}, errAgain
	}
}

type txnResponse clientv3.TxnResponse

// answersOf returns the answers in resp, of which there must be as many as operations were sent.
func answersOf(resp *txnResponse, then, instead int) ([]answer, error) {
	want := then
	if !resp.Succeeded {
		want = instead
	}
	if len(resp.Responses) != want {
		return nil, fmt.Errorf("%w: %d answers to %d operations", errForeign, len(resp.Responses), want)
	}
	answers := make([]answer, want)
	for i, r := range resp.Responses {
		if get := r.GetResponseRange(); get != nil && len(get.Kvs) > 0 {
			answers[i].kv = get.Kvs[0]
		}
		if put := r.GetResponsePut(); put != nil && put.PrevKv != nil {
			answers[i].old = put.PrevKv.Value
		}
		if deleted := r.GetResponseDeleteRange(); deleted != nil && len(deleted.PrevKvs) > 0 {
			answers[i].old = deleted.PrevKvs[0].Value
		}
	}
	return answers, nil
}

package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// What a request may hold: the limits of tcpstore and memstore.
const (
	maxKey   = 8 << 10
	maxValue = 8 << 20
	maxKeys  = 128 << 10
)

// etcd refuses requests of more than 1.5 MiB unless it was told otherwise. Longer values are cut into pieces under keys
// of our own, and the key holds their name.
const (
	maxPlain = 512 << 10
	piece    = 512 << 10
)

// Keys of the user stand behind the prefix as they are, unless they begin with mark. Ours begin with mark and their
// kind.
const (
	mark      = "~"
	userKeys  = "~k" // a user's key, without the mark that it begins with
	slotKeys  = "~s/"
	pieceKeys = "~p/"
)

// Values stand there as they are, unless they begin with special. Ours that do are one of these:
const (
	special = "\xfemuster"
	literal = special + " " // the value follows
	pieces  = special + ":" // length and name of the pieces follow, separated by a colon
)

var (
	errForeign = errors.New("not what this store wrote")
	errNumber  = errors.New("the value is no number")
)

func (s *Store) key(key string) string {
	if rest, ok := strings.CutPrefix(key, mark); ok {
		return s.cfg.Prefix + userKeys + rest
	}
	return s.cfg.Prefix + key
}

func (s *Store) ownKey(kind, name string) string { return s.cfg.Prefix + kind + name }

func checkKeys(what string, keys ...string) error {
	if len(keys) > maxKeys {
		return fmt.Errorf("%s of %d keys exceeds the store's limit of %d", what, len(keys), maxKeys)
	}
	for _, k := range keys {
		if len(k) > maxKey {
			return fmt.Errorf("key of %d bytes exceeds the store's limit of %d", len(k), maxKey)
		}
	}
	return nil
}

func checkValues(key string, values ...[]byte) error {
	for _, v := range values {
		if len(v) > maxValue {
			return fmt.Errorf("value of %d bytes for key %q exceeds the store's limit of %d", len(v), key, maxValue)
		}
	}
	return nil
}

// plain returns how a value that is not cut is stored.
func plain(value []byte) string {
	if bytes.HasPrefix(value, []byte(special)) {
		return literal + string(value)
	}
	return string(value)
}

// stored is a value on its way into the store.
type stored struct {
	text   string         // what the key will hold
	needs  []clientv3.Cmp // what must be there for that
	pieces string         // name of the uploaded pieces, empty for none
}

// upload returns how value is stored, and stores its pieces if it has some.
func (s *Store) upload(ctx context.Context, what, key string, value []byte) (stored, error) {
	if len(value) <= maxPlain {
		return stored{text: plain(value)}, nil
	}
	s.mu.Lock()
	s.blobs++
	name := fmt.Sprintf("%s/%d", s.name, s.blobs)
	s.mu.Unlock()
	out := stored{text: pieces + strconv.Itoa(len(value)) + ":" + name, pieces: name}
	for i := 0; len(value) > 0; i++ {
		n := min(piece, len(value))
		at := s.pieceKey(name, i)
		err := s.retry(ctx, what, key, func(ctx context.Context) error {
			// Done twice, this does no harm: the key is nobody else's.
			_, err := s.client.Put(ctx, at, string(value[:n]), clientv3.WithLease(clientv3.LeaseID(s.id)))
			if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
				if err := s.rejoin(ctx); err != nil {
					return err
				}
				return errAgain
			}
			return err
		})
		if err != nil {
			return stored{}, err
		}
		out.needs = append(out.needs, clientv3.Compare(clientv3.CreateRevision(at), ">", 0))
		value = value[n:]
	}
	return out, nil
}

func (s *Store) pieceKey(name string, i int) string {
	return s.ownKey(pieceKeys, fmt.Sprintf("%s/%04d", name, i))
}

// split returns length and name of the pieces that text stands for.
func split(text []byte) (length int, name string, ok bool) {
	rest, ok := bytes.CutPrefix(text, []byte(pieces))
	if !ok {
		return 0, "", false
	}
	digits, name, ok := strings.Cut(string(rest), ":")
	if !ok {
		return 0, "", false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), name, err == nil && n > maxPlain && n <= maxValue && name != ""
}

// value returns what the user stored in kv. It returns nil without an error where that was replaced while its pieces
// were read: kv is not what stands there any more. What nobody of the job can have stored so is a value as it stands:
// whoever reads it knows what to make of it, and waits for nothing.
func (s *Store) value(ctx context.Context, kv *mvccpb.KeyValue) ([]byte, error) {
	if rest, ok := bytes.CutPrefix(kv.Value, []byte(literal)); ok {
		return append([]byte{}, rest...), nil
	}
	length, name, ok := split(kv.Value)
	if !ok {
		return append([]byte{}, kv.Value...), nil
	}
	first := s.ownKey(pieceKeys, name+"/")
	n := (length + piece - 1) / piece
	resp, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(string(kv.Key), clientv3.WithKeysOnly()),
		clientv3.OpGet(first, clientv3.WithRange(clientv3.GetPrefixRangeEnd(first)), clientv3.WithLimit(int64(n)),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)),
	).Commit()
	if err != nil {
		return nil, err
	}
	answers, err := answersOf((*txnResponse)(resp), 2, 0)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, part := range resp.Responses[1].GetResponseRange().GetKvs() {
		out.Write(part.Value)
	}
	now := answers[0].kv
	switch {
	case out.Len() == length:
		return out.Bytes(), nil
	case now == nil || now.ModRevision != kv.ModRevision:
		return nil, nil
	}
	return append([]byte{}, kv.Value...), nil
}

// dropPieces removes, behind the caller's back, what nobody can find any more: the pieces of a value that was replaced.
// Where that fails they stay until the job is gone.
func (s *Store) dropPieces(ctx context.Context, name string) {
	if name == "" {
		return
	}
	s.background(func() {
		ctx, release := s.bind(context.WithoutCancel(ctx))
		defer release()
		ctx, cancel := context.WithTimeout(ctx, attemptLimit)
		defer cancel()
		first := s.ownKey(pieceKeys, name+"/")
		if _, err := s.client.Delete(ctx, first, clientv3.WithRange(clientv3.GetPrefixRangeEnd(first))); err != nil {
			s.cfg.Log.Debug().Err(err).Msg("pieces of a replaced value not removed")
		}
	})
}

// dropReplaced drops the pieces of the values that the operations of out replaced.
func (s *Store) dropReplaced(ctx context.Context, out outcome) {
	for _, a := range out.answers {
		if _, name, ok := split(a.old); ok {
			s.dropPieces(ctx, name)
		}
	}
}

package etcdstore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"muster/internal/errhint"
	"muster/rendezvous"
)

const (
	// Of one request. A follower holds on to what it sent to a leader that died for seven seconds, while another copy
	// is answered at once; on a slow cluster each attempt gets twice the time of the one before.
	firstLimit   = time.Second
	attemptLimit = 8 * time.Second
	suspectAfter = 500 * time.Millisecond // a request that takes longer has the members asked what is wrong
	fresh        = 2 * attemptLimit       // for how long what the members said explains why a call did not succeed
	firstPause   = 20 * time.Millisecond  // between attempts; doubles, less a random part of up to a half
	longPause    = time.Second

	// A machine that died sends nothing. The kernel's own probes find that within five seconds. gRPC's come every ten
	// at the most often; they also find a frozen process, if no request met it before (cut).
	keepIdle     = 2 * time.Second
	keepInterval = time.Second
	keepCount    = 3
	pingAfter    = 10 * time.Second
	pingLimit    = 3 * time.Second

	maxMessage = 64 << 20 // bytes of one answer, which holds at most readBatch values of maxPlain bytes each
)

// Store is a rendezvous.Store on etcd. Methods are safe for concurrent use. After Close every call returns
// rendezvous.ErrStoreClosed; nothing else closes it.
type Store struct {
	cfg    Config
	tls    *tls.Config
	client *clientv3.Client
	lease  pb.LeaseClient
	id     int64  // of the lease that the stores of the job share
	name   string // of this store, unlike any other's: its part of the key space
	logins logins
	life   context.Context
	end    context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	wg       sync.WaitGroup // goroutines of our own; one is added only with mu held and closed false
	slots    []*slot        // those that no call uses
	lastSlot int
	links    map[*link]struct{}
	blobs    int       // names that uploads have had
	asking   bool      // an inspection is under way
	asked    time.Time // when the last one ended
	trouble  string    // what it found, empty for nothing
}

var _ rendezvous.Store = (*Store)(nil)

var errClosedHere = fmt.Errorf("%w: closed here", rendezvous.ErrStoreClosed)

// gRPC is kept from writing to standard error, which is ours: nobody else in the program uses it. Its logger is guarded
// by nothing, and has to be set before anything of it runs.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) } //nolint:gochecknoinits // see above

// Open connects to the cluster, joins the lease of the job and makes sure that it may write there. It tries again until
// ctx ends, but fails at once where that cannot help: credentials, or endpoints none of which is an etcd that we can
// talk to. The error has the status errhint.TryAgain, or errhint.Usage for a wrong Config. The caller closes the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	tlsConfig, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	var name [8]byte
	_, _ = rand.Read(name[:]) // never fails
	s := &Store{cfg: cfg, tls: tlsConfig, id: leaseID(cfg.Prefix, cfg.Lease), name: hex.EncodeToString(name[:])}
	s.logins.busy = make(chan struct{}, 1)
	s.life, s.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.open(ctx); err != nil {
		_ = s.Close()
		return nil, errhint.Code(err, errhint.TryAgain)
	}
	s.wg.Go(s.keepAlive)
	return s, nil
}

// open is Open's part that takes time.
func (s *Store) open(ctx context.Context) error {
	start, pause, limit := time.Now(), firstPause, suspectAfter
	var last error
	for ctx.Err() == nil {
		err := s.tryOpen(ctx, limit)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
		if final(err) {
			return fmt.Errorf("cannot use %s: %w", s.cfg, s.explain(err))
		}
		last = err
		s.cfg.Log.Debug().Err(err).Strs("endpoints", s.cfg.Endpoints).Msg("etcd not reached yet")
		found := s.inspect(ctx)
		s.mu.Lock()
		if s.trouble == "" || ctx.Err() == nil { // else some were not asked to the end
			s.trouble = found.String()
		}
		s.mu.Unlock()
		if err := found.hopeless(); err != nil && ctx.Err() == nil {
			return errhint.With(fmt.Errorf("cannot use %s: %w", s.cfg, err), errhint.Of(err))
		}
		if sleep(ctx, pause) == nil {
			pause, limit = min(2*pause, longPause), attemptLimit
		}
	}
	s.mu.Lock()
	trouble := s.trouble
	s.mu.Unlock()
	return s.unreached(ctx, start, trouble, last)
}

func (s *Store) unreached(ctx context.Context, start time.Time, trouble string, last error) error {
	err := fmt.Errorf("cannot reach %s within %v: %w", s.cfg, time.Since(start).Round(time.Millisecond), context.Cause(ctx))
	switch {
	case trouble != "":
		err = fmt.Errorf("%w (%s)", err, trouble)
	case last != nil:
		err = fmt.Errorf("%w (last attempt: %w)", err, last)
	}
	return errhint.With(err, "does etcd run there, with more than half of its members, and can its client port be reached from here?")
}

func (s *Store) tryOpen(ctx context.Context, limit time.Duration) error {
	if s.client == nil {
		client, err := clientv3.New(s.clientConfig())
		if err != nil {
			return err
		}
		s.client, s.lease = client, pb.NewLeaseClient(client.ActiveConnection())
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), limit)
	defer cancel()
	if s.cfg.User != "" {
		if err := s.login(ctx, nil); err != nil {
			return err
		}
	}
	if err := s.loggedIn(ctx, s.join); err != nil {
		return err
	}
	// Touching a slot of ours finds out whether we may write here.
	sl := s.takeSlot()
	_, err := s.commit(ctx, sl, write{}, false)
	if err == nil {
		s.giveBack(sl)
	}
	return err
}

func (s *Store) clientConfig() clientv3.Config {
	return clientv3.Config{
		Endpoints: s.cfg.Endpoints, TLS: s.tls,
		Context: clientv3.WithRequireLeader(s.life), Logger: zap.NewNop(),
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingLimit,
		MaxCallRecvMsgSize: maxMessage, MaxUnaryRetries: 1, // we try again ourselves
		DialOptions: append(append(connectOptions(s.connect), grpc.WithPerRPCCredentials(&s.logins)), s.cfg.dial...),
	}
}

// connectOptions are how we connect, without the proxy that the environment may name: clusters are near.
func connectOptions(connect func(ctx context.Context, addr string) (net.Conn, error)) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(connect),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
	}
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}}
	return dialer.DialContext(ctx, "tcp", addr)
}

// link is a connection of the client's.
type link struct {
	net.Conn
	addr string
	s    *Store
}

// connect is dial for the client.
func (s *Store) connect(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	l := &link{conn, addr, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links = make(map[*link]struct{})
	}
	s.links[l] = struct{}{}
	return l, nil
}

func (l *link) Close() error {
	l.s.mu.Lock()
	delete(l.s.links, l)
	l.s.mu.Unlock()
	return l.Conn.Close()
}

// cut closes the connections to addr. What was asked there is asked elsewhere then, watches too.
func (s *Store) cut(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		if l.addr == addr {
			_ = l.Conn.Close()
		}
	}
}

// Close ends the store; calls in progress return rendezvous.ErrStoreClosed. The keys stay as long as another store of
// the job keeps them, and LeaseTTL longer. It may be called again.
func (s *Store) Close() error {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.mu.Unlock()
	s.end(errClosedHere)
	s.wg.Wait()
	if s.client == nil || already {
		return nil
	}
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("cannot close the client of %s: %w", s.cfg, err)
	}
	return nil
}

// background runs f in a goroutine that Close waits for, unless the store is closed.
func (s *Store) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Go(f)
	}
}

// bind returns ctx that also ends with the store, and asks the members to refuse us rather than have us wait while they
// have no leader.
func (s *Store) bind(ctx context.Context) (context.Context, func()) {
	bound, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return bound, func() { stop(); cancel(nil) }
}

// retry calls attempt until it returns nil or an error that trying again cannot mend, or until ctx ends. what and key
// are for the error. A failed attempt may have been carried out.
func (s *Store) retry(ctx context.Context, what, key string, attempt func(ctx context.Context) error) error {
	if err := ended(ctx, s.life); err != nil {
		return wrap(what, key, err)
	}
	bound, release := s.bind(ctx)
	defer release()
	pause, limit := firstPause, firstLimit
	for {
		limited, cancel := context.WithTimeout(bound, limit)
		slow := time.AfterFunc(suspectAfter, s.suspect)
		err := s.loggedIn(limited, attempt)
		slow.Stop()
		cancel()
		if err == nil {
			return nil
		}
		if ended := ended(ctx, s.life); ended != nil {
			return wrap(what, key, s.because(ended, err))
		}
		if final(err) {
			return wrap(what, key, s.explain(err))
		}
		s.suspect()
		s.cfg.Log.Debug().Err(err).Str("op", what).Msg("etcd request tried again")
		_ = sleep(bound, pause) // the next attempt finds its end
		pause = min(2*pause, longPause)
		if isContext(err) {
			limit = min(2*limit, attemptLimit)
		}
	}
}

// ended returns why a call cannot go on, nil if it can.
func ended(ctx, life context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if life.Err() != nil {
		return context.Cause(life)
	}
	return nil
}

// because adds to why a call ended what stood in its way: what the members said when they were asked a moment ago, else
// the last answer.
func (s *Store) because(why, last error) error {
	s.mu.Lock()
	trouble := s.trouble
	if time.Since(s.asked) > fresh {
		trouble = ""
	}
	s.mu.Unlock()
	switch {
	case trouble != "":
		return fmt.Errorf("%w (%s)", why, trouble)
	case last == nil || isContext(last):
		return why
	}
	return fmt.Errorf("%w (last answer of etcd: %w)", why, last)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded
}

// final says whether trying again after err is pointless.
func final(err error) bool {
	if err == nil || isContext(err) || errors.Is(err, errAgain) {
		return false
	}
	err = rpctypes.Error(err)
	if errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrLeaseNotFound) ||
		errors.Is(err, rpctypes.ErrLeaseExist) || errors.Is(err, rpctypes.ErrTooManyRequests) || errors.Is(err, rpctypes.ErrNotLeader) {
		return false // they pass
	}
	code := codes.Unknown
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	} else if e, ok := status.FromError(err); ok {
		code = e.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.NotFound,
		codes.OutOfRange, codes.Unimplemented, codes.DataLoss, codes.ResourceExhausted:
		return true
	default:
		return errors.Is(err, errForeign)
	}
}

// explain gives err, an answer that is final, words and a hint.
func (s *Store) explain(err error) error {
	typed := rpctypes.Error(err)
	user := "no user"
	if s.cfg.User != "" {
		user = fmt.Sprintf("user %q", s.cfg.User)
	}
	switch {
	case errors.Is(typed, rpctypes.ErrAuthFailed):
		return errhint.With(fmt.Errorf("etcd refuses the password of %s: %w", user, typed),
			"check the user and the password of the etcd cluster")
	case errors.Is(typed, rpctypes.ErrUserEmpty):
		return errhint.With(fmt.Errorf("etcd wants a user and was given none: %w", typed), "give a user and a password of the etcd cluster")
	case errors.Is(typed, rpctypes.ErrPermissionDenied):
		return errhint.With(fmt.Errorf("%s may not read and write under %q: %w", user, s.cfg.Prefix, typed),
			fmt.Sprintf("grant it: etcdctl role grant-permission ROLE --prefix=true readwrite %s", s.cfg.Prefix))
	case errors.Is(typed, rpctypes.ErrNoSpace):
		return errhint.With(fmt.Errorf("etcd is full: %w", typed), "compact and defragment it, then: etcdctl alarm disarm")
	}
	return typed
}

func wrap(what, key string, err error) error {
	return fmt.Errorf("cannot %s %q: %w", what, key, err)
}

// sleep waits for about d, or until ctx ends, and returns why it ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d - mrand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

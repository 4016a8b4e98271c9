package etcdstore

import (
	"context"
	"errors"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// logins is how the client proves who it is: by a token that etcd gave for user and password, and that it forgets after
// some idle minutes or when a member restarts.
//
// etcd's own client shows the forgotten token where it asks for a new one; the server refuses to hear it, and the
// client asks again, for ever (client 3.7.3, server 3.4.23).
type logins struct {
	token atomic.Pointer[string] // nil before the first login
	busy  chan struct{}          // holds one element while somebody logs in
}

type withoutToken struct{}

// GetRequestMetadata implements grpc's credentials.PerRPCCredentials.
func (l *logins) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token := l.token.Load()
	if token == nil || *token == "" || ctx.Value(withoutToken{}) != nil {
		return nil, nil
	}
	return map[string]string{rpctypes.TokenFieldNameGRPC: *token}, nil
}

// RequireTransportSecurity implements grpc's credentials.PerRPCCredentials. Whether there is TLS is the user's choice.
func (l *logins) RequireTransportSecurity() bool { return false }

// forgotten says whether err means that a login can help.
func forgotten(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrUserEmpty)
}

// login gets a token in the place of stale, unless somebody else has got one.
func (s *Store) login(ctx context.Context, stale *string) error {
	select {
	case s.logins.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.logins.busy }()
	if s.logins.token.Load() != stale {
		return nil
	}
	answer, err := pb.NewAuthClient(s.client.ActiveConnection()).Authenticate(context.WithValue(ctx, withoutToken{}, true),
		&pb.AuthenticateRequest{Name: s.cfg.User, Password: s.cfg.Password})
	token := ""
	switch {
	case err == nil:
		token = answer.Token
	case !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled): // else everybody may do everything
		return err
	}
	s.logins.token.Store(&token)
	return nil
}

// loggedIn calls f, and once more after a new login if etcd has forgotten us.
func (s *Store) loggedIn(ctx context.Context, f func(ctx context.Context) error) error {
	token := s.logins.token.Load()
	err := f(ctx)
	if s.cfg.User == "" || !forgotten(err) {
		return err
	}
	s.cfg.Log.Debug().Err(err).Msg("logging in to etcd again")
	if err := s.login(ctx, token); err != nil {
		return err
	}
	return f(ctx)
}

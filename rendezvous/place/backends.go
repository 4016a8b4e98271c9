package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/internal/periodic"
	"muster/rendezvous/c10d"
	"muster/rendezvous/etcdstore"
	"muster/rendezvous/membership"
	"muster/rendezvous/mixed"
)

// openEtcd reaches etcd.
func (m *meeting) openEtcd(ctx context.Context, cfg *membership.Config) error {
	e := etcdstore.Config{
		TLS: m.Etcd.TLS, CACert: m.Etcd.CACert, Cert: m.Etcd.Cert, CertKey: m.Etcd.CertKey, User: m.Etcd.User,
		Prefix: m.Etcd.Prefix, Lease: m.runID, Log: m.log,
	}
	for _, p := range m.Endpoints {
		e.Endpoints = append(e.Endpoints, p.String())
	}
	if file := m.Etcd.PasswordFile; file != "" {
		password, err := os.ReadFile(file)
		if err != nil {
			return errhint.Code(fmt.Errorf("cannot read etcd's password: %w", err), errhint.Usage)
		}
		e.Password = strings.TrimRight(string(password), "\r\n")
	}
	stop := periodic.Every(progressEvery, func(since time.Duration) {
		m.log.Warn().Strs("endpoints", e.Endpoints).Dur("dur_ms", since).Msg("waiting for etcd")
	})
	defer stop()
	if err := m.awaitName(ctx, cfg); err != nil {
		return err
	}
	store, err := etcdstore.Open(ctx, e)
	if err != nil {
		return err
	}
	cfg.Store, cfg.Durable, cfg.Place = store, true, "etcd at "+strings.Join(e.Endpoints, ",")
	return nil
}

// awaitName finds this node's address towards etcd. The name of an endpoint may be known only when etcd has been
// started.
func (m *meeting) awaitName(ctx context.Context, cfg *membership.Config) error {
	for {
		err := m.ownAddr(ctx, cfg, m.Endpoints[0])
		if err == nil || !errors.Is(err, hostaddr.ErrUnresolved) && ctx.Err() == nil {
			return err
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			err = fmt.Errorf("cannot reach etcd at %s within %v: %w", m.Endpoints[0], m.JoinTimeout, err)
			return errhint.Code(errhint.With(err, "does etcd run, and is its name right?"), errhint.TryAgain)
		}
	}
}

// bridge lets agents of torchrun take part.
func (m *meeting) bridge(store membership.Conn) (membership.Bridge, error) {
	set := c10d.DefaultSettings(m.nodes.Min, m.nodes.Max)
	set.JoinTimeout, set.CloseTimeout = m.JoinTimeout, m.CloseTimeout
	set.LastCall = cmp.Or(m.LastCall, set.LastCall)
	set.HeartbeatTimeout = cmp.Or(m.HeartbeatTimeout, set.HeartbeatTimeout)
	set.KeepAlive = cmp.Or(m.KeepAlive, set.KeepAlive)
	set.KeepAliveAttempts = cmp.Or(m.KeepAliveAttempts, set.KeepAliveAttempts)
	b, err := mixed.New(c10d.BridgeConfig{
		Store: store, RunID: m.runID, Settings: set, ReadTimeout: m.ReadTimeout, Log: m.log, ClockOffset: m.offset,
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// countAtStatic lets the host of a static job, which may be torchrun's, count this agent.
func (m *meeting) countAtStatic(ctx context.Context, conn membership.Conn) error {
	store, ok := conn.(mixed.StaticStore)
	if !ok {
		return fmt.Errorf("internal error: a static job at a %T", conn)
	}
	return mixed.CountClient(ctx, store)
}

// staticBridge lets agents of torchrun have node ranks.
func (m *meeting) staticBridge(conn membership.Conn) (membership.Bridge, error) {
	store, ok := conn.(mixed.StaticStore)
	if !ok {
		return nil, fmt.Errorf("internal error: a static job at a %T", conn)
	}
	at := m.Endpoints[0]
	return mixed.NewStatic(mixed.StaticConfig{Store: store, RunID: m.runID, Nodes: m.nodes.Max, Addr: at.Host, Port: at.Port, Log: m.log}),
		nil
}

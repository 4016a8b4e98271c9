package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"muster/internal/admission"
	"muster/internal/peertls"
)

// Domain says whose connections they are: all agents of one job have the same.
type Domain struct {
	// Token is the job's, RunID its name.
	Token []byte
	RunID string
}

func (d Domain) peers() peertls.Domain {
	return peertls.Domain{Token: d.Token, Purpose: "see and steer", RunID: d.RunID}
}

// Listener takes connections of the job's other agents.
type Listener struct {
	id       peertls.Identity
	gate     *admission.Gate
	acceptor *peertls.Acceptor
	serve    func(net.Conn)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// Listen begins to listen at a free port of an address of this machine. serve takes the connections that are proven; it
// returns at once, and closes those that it does not want.
func Listen(ctx context.Context, addr string, d Domain, serve func(net.Conn)) (*Listener, error) {
	var lc net.ListenConfig
	raw, err := lc.Listen(ctx, "tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, err
	}
	l := &Listener{
		id: peertls.NewIdentity(raw.Addr().String()), serve: serve,
		gate: admission.Listener(raw, admission.Config{Time: peertls.Time, Refuse: peertls.Refuse}),
	}
	l.acceptor = d.peers().Acceptor(l.id)
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.wg.Go(l.accept)
	return l, nil
}

// Identity is what the other agents reach the listener by. A nil Listener has none.
func (l *Listener) Identity() peertls.Identity {
	if l == nil {
		return ""
	}
	return l.id
}

func (l *Listener) accept() {
	for {
		conn, err := l.gate.Accept()
		if err != nil {
			return // it was closed: others pass
		}
		l.wg.Go(func() {
			stop := context.AfterFunc(l.ctx, func() { _ = conn.Close() })
			defer stop()
			proven, err := l.acceptor.Server(l.ctx, conn)
			if err != nil || !admission.Proven(conn) { // no agent of the job: there is nothing to say of it
				_ = conn.Close()
				return
			}
			l.serve(proven)
		})
	}
}

// Close ends the listener, and connections that are not proven yet.
func (l *Listener) Close() error {
	if l == nil {
		return nil
	}
	l.cancel()
	err := l.gate.Close()
	l.wg.Wait()
	return err
}

// dialTime bounds the time until another agent is connected and proven.
const dialTime = 4 * time.Second

// Dial connects to the agent with an identity.
func Dial(ctx context.Context, d Domain, to peertls.Identity) (net.Conn, error) {
	if err := to.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", to.Addr())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	conn, err := d.peers().Client(ctx, raw, to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot talk to its muster at %s: %w", to.Addr(), err), raw.Close())
	}
	return conn, nil
}

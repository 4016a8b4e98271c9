package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// How often and how long a worker is tried.
const (
	tries   = 3
	timeout = 5 * time.Second
	pause   = 200 * time.Millisecond
)

// Dialer connects to a worker; a net.Dialer does.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Tell tells a worker what changed. Its addresses are tried in their order, each up to three times, until one of them
// answers with the worker's key: what else listens there, such as another machine with the same private address, has
// not got it. A worker ignores a message that is not later than the last one, by at's whole seconds.
func Tell(ctx context.Context, d Dialer, to Registration, at time.Time, change Change) error {
	return to.exchange(ctx, d, hostsUpdated(at, change), ackReply)
}

func (r Registration) exchange(ctx context.Context, d Dialer, body []byte, reply string) error {
	if len(r.Addresses) == 0 {
		return errors.New("cannot notify a worker that listens nowhere")
	}
	var errs []error
	for try := range tries {
		if try > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		errs = errs[:0]
		for _, addr := range r.Addresses {
			err := r.attempt(ctx, d, addr, body, reply)
			if err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		}
	}
	return fmt.Errorf("cannot notify a worker: %w", errors.Join(errs...))
}

func (r Registration) attempt(ctx context.Context, d Dialer, addr netip.AddrPort, body []byte, reply string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(frame(r.key[:], body)); err != nil {
		return err
	}
	answer, err := readFrame(conn, r.key[:])
	if err != nil {
		return err
	}
	if !isObject(answer, reply) {
		return fmt.Errorf("the answer is no %s", reply)
	}
	return nil
}

package netprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"muster/internal/errhint"
	"muster/internal/peertls"
)

// dialer connects to servers.
type dialer struct {
	domain   peertls.Domain
	patience time.Duration // for connecting and the handshake together
	way      *way          // nil for the real one
}

// client is a connection to a server that has let us in.
type client struct {
	*peertls.Conn
	key []byte
}

// datagrams is what the key of a connection is for.
const datagrams = "datagrams"

// plainOf returns the socket of a connection, for bytes that are counted and not believed: encrypting them would
// measure the processors, not the network.
func plainOf(conn *peertls.Conn) net.Conn {
	below := conn.NetConn()
	for {
		wraps, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			return below
		}
		below = wraps.NetConn()
	}
}

// dial connects to an address, and makes sure that id answers there. Errors do not name the address: the caller does.
func (d *dialer) dial(ctx context.Context, addr string, id peertls.Identity) (*client, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	raw, err := d.way.dial(ctx, addr)
	if err != nil {
		var slow net.Error
		if ctx.Err() != nil || errors.As(err, &slow) && slow.Timeout() {
			return nil, fmt.Errorf("no answer within %v", d.patience)
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
			err = op.Err // the rest repeats the address
		}
		return nil, err
	}
	_ = raw.SetDeadline(began.Add(d.patience))
	conn, err := d.domain.Client(ctx, raw, id)
	var key []byte
	if err == nil {
		key, err = conn.Key(datagrams)
	}
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			err = context.Cause(ctx)
		}
		_ = raw.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return &client{conn, key}, nil
}

// hintOf says what to try after dial has failed.
func hintOf(err error) string {
	switch {
	case errors.Is(err, peertls.ErrToken):
		return "give every agent of the job the same token (MUSTER_TOKEN_FILE)"
	case errors.Is(err, peertls.ErrOther):
		return "has the agent there been started again, or does something lead connections to another node?"
	case errors.Is(err, peertls.ErrNotUs):
		return "does another program listen at that port, or another version of muster?"
	case errors.Is(err, peertls.ErrSilent):
		return "is the agent there stopped, or does another program listen at that port?"
	case errors.Is(err, peertls.ErrBusy):
		return "too many nodes probe it at the same time: try again"
	}
	return "is the agent running there, and does a firewall let TCP connections to that port pass?"
}

// count takes in how a try has ended.
func (t *Tries) count(err error) {
	t.Done++
	if err != nil {
		t.Failed++
		t.Last = clean(err.Error(), 200)
	}
}

// gap is how long to wait after a try.
func gap(d time.Duration, err error) time.Duration {
	if err == nil {
		return d / 4
	}
	return d
}

// pause waits, and says whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// ask sends a request and takes its answer, within limit.
func (c *client) ask(ctx context.Context, r request, limit time.Duration) (answer, error) {
	var a answer
	_ = c.SetDeadline(time.Now().Add(limit))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := writeMessage(c, r)
	if err == nil {
		err = readMessage(c, &a)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return a, fmt.Errorf("no answer to %q: %w", r.Op, err)
	}
	if a.Busy {
		return a, peertls.ErrBusy
	}
	if a.Error != "" {
		return a, fmt.Errorf("the other node says: %s", clean(a.Error, 300))
	}
	return a, nil
}

// unreachable is the error about a node that could not be connected to.
func unreachable(addr string, err error) error {
	return errhint.With(fmt.Errorf("cannot probe %s: %w", addr, err), hintOf(err))
}

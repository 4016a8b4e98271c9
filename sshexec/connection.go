package sshexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"muster/internal/errhint"
)

// attempt is what is learned during one login.
type attempt struct {
	hostKey   error    // the key of the machine was refused
	known     []string // algorithms of its known keys
	methods   []string // by which it lets in; nil: the login did not get there
	partial   bool     // it took a key, and wants more
	tried     []string // names of our keys
	skipped   []string
	encrypted string
}

// connection is an open ssh connection to a machine that let us in.
type connection struct {
	*ssh.Client
	s   *settings
	net net.Conn
	wg  sync.WaitGroup

	done  chan struct{} // closed when it has ended
	mu    sync.Mutex
	ended bool
	cause error // why it was ended from this side; nil: because nobody needs it any more
}

// maxHops bounds the machines on the way to another.
const maxHops = 8

// connect opens a connection to a machine and logs in.
func (d *Dialer) connect(ctx context.Context, s *settings) (*connection, error) {
	conn, err := d.dial(ctx, s)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakes*s.timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	k := s.keys(ctx)
	defer k.close()
	a := &attempt{tried: k.tried, skipped: k.skipped, encrypted: k.encrypted}
	checkKey, algorithms, err := d.hostKeys.check(s, a)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	cfg := &ssh.ClientConfig{
		User: s.user, HostKeyCallback: checkKey, HostKeyAlgorithms: algorithms,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(k.signers...)},
		AuthCallback: func(ctx *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			a.methods, a.partial = ctx.AllowedMethods, len(ctx.PartialSuccessMethods) > 0
			return nil, nil
		},
	}
	began := time.Now()
	sc, channels, requests, err := ssh.NewClientConn(conn, s.addr(), cfg)
	if err != nil {
		return nil, s.handshakeFailed(ctx, a, err)
	}
	c := &connection{Client: ssh.NewClient(sc, channels, requests), s: s, net: conn, done: make(chan struct{})}
	if !stop() {
		c.close(nil)
		return nil, s.handshakeFailed(ctx, a, context.Cause(ctx))
	}
	c.wg.Go(c.keepAlive)
	d.log.Debug().Str("host", s.name).Str("addr", s.addr()).Dur("dur_ms", time.Since(began)).Msg("logged in")
	return c, nil
}

// dial opens a connection to the port of a machine: by itself, through jump hosts, or by a program.
func (d *Dialer) dial(ctx context.Context, s *settings) (net.Conn, error) {
	switch {
	case len(s.jumps) > 0:
		return d.dialThrough(ctx, s, true)
	case s.proxy != "":
		conn, err := d.proxy(s)
		if err != nil {
			return nil, s.fail(Failed, "", err)
		}
		return conn, nil
	default:
		dialer := net.Dialer{
			Timeout:         s.timeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: s.aliveEvery, Interval: s.aliveEvery},
		}
		began := time.Now()
		conn, err := dialer.DialContext(ctx, s.network, s.addr())
		if err != nil {
			return nil, s.dialFailed(ctx, err, time.Since(began))
		}
		return conn, nil
	}
}

// dialThrough opens a connection that a jump host makes for us. A way that is found broken only now is made anew once.
func (d *Dialer) dialThrough(ctx context.Context, s *settings, again bool) (net.Conn, error) {
	began := time.Now()
	via, err := d.hop(ctx, s.jumps, s.name)
	if _, told := errors.AsType[*Error](err); told || errhint.CodeOf(err) == errhint.Usage {
		return nil, fmt.Errorf("cannot reach host %s: %w", s.name, err)
	} else if err != nil {
		return nil, s.dialFailed(ctx, err, time.Since(began))
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	opening, stop := via.whileThere(limited)
	defer stop()
	began = time.Now()
	conn, err := via.DialContext(opening, "tcp", s.addr())
	switch _, refused := errors.AsType[*ssh.OpenChannelError](err); {
	case err == nil:
		return conn, nil
	case refused || limited.Err() != nil:
		return nil, s.dialFailed(limited, err, time.Since(began))
	case again:
		via.end(err)
		return d.dialThrough(ctx, s, false)
	default:
		return nil, s.dialFailed(ctx, fmt.Errorf("the connection to the jump host %s is gone: %w", via.s.name, err), time.Since(began))
	}
}

// hop is a connection to a jump host that everybody shares who goes that way.
type hop struct {
	ready chan struct{} // closed when conn or err is there
	conn  *connection
	err   error
}

// hop returns the connection to the last of the machines on a way. Who comes first opens it, for as long as the Dialer
// is open; who comes meanwhile waits for the same one.
func (d *Dialer) hop(ctx context.Context, way []string, to string) (*connection, error) {
	if len(way) > maxHops {
		return nil, errhint.Usagef("cannot reach host %s through more than %d jump hosts", to, maxHops)
	}
	name := strings.Join(way, ",")
	d.mu.Lock()
	if d.hops == nil {
		d.mu.Unlock()
		return nil, net.ErrClosed
	}
	h := d.hops[name]
	if h != nil && h.gone() {
		h = nil
	}
	if h == nil {
		h = &hop{ready: make(chan struct{})}
		d.hops[name] = h
		go func() { // bounded by the limits of a connection, and Close waits for it
			defer close(h.ready)
			h.conn, h.err = d.connectHop(d.ctx, way)
		}()
	}
	d.mu.Unlock()
	select {
	case <-h.ready:
		return h.conn, h.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// gone reports that a connection was lost, or did not come about: the next one who goes there tries again.
func (h *hop) gone() bool {
	select {
	case <-h.ready:
		return h.err != nil || h.conn.lost() != nil
	default:
		return false
	}
}

func (d *Dialer) connectHop(ctx context.Context, way []string) (*connection, error) {
	h, err := parseJump(way[len(way)-1])
	if err != nil {
		return nil, err
	}
	s, err := d.resolve(ctx, h, true)
	if err != nil {
		return nil, err
	}
	if before := way[:len(way)-1]; len(before) > 0 {
		s.jumps, s.proxy = before, ""
	} else if slices.Contains(s.jumps, way[0]) {
		s.jumps = nil // a pattern that holds for the jump host as well, as "Host *" does
	}
	return d.connect(ctx, s)
}

// lost returns why the connection has ended, and nil while it has not.
func (c *connection) lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		return nil
	}
	if c.cause != nil {
		return c.cause
	}
	return net.ErrClosed
}

// whileThere returns a context that ends with the connection, too. The library waits without end for a channel that is
// asked for at the moment when the connection ends.
func (c *connection) whileThere(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with its caller
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// session opens a session, or fails when the connection ends.
func (c *connection) session() (*ssh.Session, error) {
	type opened struct {
		run *ssh.Session
		err error
	}
	answer := make(chan opened, 1)
	go func() { // ends with the answer of the other side; see whileThere for the one that never comes
		run, err := c.NewSession()
		answer <- opened{run, err}
	}()
	select {
	case o := <-answer:
		return o.run, o.err
	case <-c.done:
		return nil, c.lost()
	}
}

// close ends the connection, of which cause is told to those who still use it, and waits for its goroutines.
func (c *connection) close(cause error) {
	c.end(cause)
	c.wg.Wait()
}

func (c *connection) end(cause error) {
	c.mu.Lock()
	if !c.ended {
		c.ended, c.cause = true, cause
		close(c.done)
	}
	c.mu.Unlock()
	_ = c.net.Close() // before the client, which would say good-bye over a link that may be stuck
}

// errSilent is the end of a connection whose other side gives no sign of life.
var errSilent = errors.New("it gives no sign of life")

// keepAlive asks the other side for an answer now and then, and ends the connection when several are missing: a machine
// that has lost its power, or a cut cable, sends nothing that would end it. It returns when the connection has ended.
func (c *connection) keepAlive() {
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	every := time.NewTicker(c.s.aliveEvery)
	defer every.Stop()
	answered := make(chan struct{}, 1)
	waiting, missed := false, 0
	for {
		select {
		case err := <-ended:
			if _, said := errors.AsType[*proxyError](err); brokenOff(err) && !said {
				err = errors.New("the other side ended it")
			}
			c.end(err)
			return
		case <-answered:
			waiting, missed = false, 0
		case <-every.C:
			if !waiting {
				waiting = true
				go func() { // ends with its answer, or with the connection
					if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err == nil {
						answered <- struct{}{}
					}
				}()
				continue
			}
			if missed++; missed >= c.s.aliveMisses {
				c.end(fmt.Errorf("%w for %v", errSilent, time.Duration(missed)*c.s.aliveEvery))
			}
		}
	}
}

// Package admission bounds what connections cost a server before they have proven who they are.
//
// A Gate is a net.Listener. A connection that it returns counts as unproven until its server calls Proven. Those that
// are unproven are few, in all and for each remote address, and short: they are closed when their time is over,
// whatever they send. Connections that have proven themselves are not counted: bounding those is the server's matter.
//
// One address cannot lock out others. Its connections above the limit for one address are closed at once, and where the
// limit for all is reached the address that has the most loses one to an address that has fewer. Where none has more
// than the newcomer, as when all nodes of a job come at once, the newcomer waits in line for the next that is done.
//
// Addresses are told apart whole, IPv6 too: the nodes of a job often share a /64.
package admission

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Config is what a Gate allows; zero means the default.
type Config struct {
	// Total is how many unproven connections there may be, default 64.
	Total int
	// PerAddr is how many of them one remote address may have, default 16, and no more than Total.
	PerAddr int
	// Time is how long one may stay unproven, default 5 s.
	Time time.Duration
	// Refuse is called with a connection that is about to be closed because one of the limits is reached, so that the
	// client can be told. It must not block for long. nil: nothing is said.
	Refuse func(net.Conn)
}

func (c Config) withDefaults() Config {
	if c.Total <= 0 {
		c.Total = 64
	}
	if c.PerAddr <= 0 {
		c.PerAddr = 16
	}
	c.PerAddr = min(c.PerAddr, c.Total)
	if c.Time <= 0 {
		c.Time = 5 * time.Second
	}
	return c
}

// Gate is a listener whose connections are counted until they are proven. It is safe for concurrent use.
type Gate struct {
	net.Listener
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	room   chan struct{} // has an item when an unproven connection is gone

	mu       sync.Mutex
	unproven map[netip.Addr][]*Conn // the oldest first; no entry is empty
	count    int
}

// Conn is a connection that a Gate has let in.
type Conn struct {
	net.Conn
	gate  *Gate
	addr  netip.Addr
	timer *time.Timer // closes it

	counted bool // guarded by gate.mu
}

// NetConn returns the connection below, which a server may use in its place once it is proven. Where it goes on with
// that one alone, closing that one is enough.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, and makes room for another where it was unproven.
func (c *Conn) Close() error {
	c.gate.leave(c)
	return c.Conn.Close()
}

// Listener bounds what l accepts. Closing the Gate closes l, and the connections that are still unproven.
func Listener(l net.Listener, cfg Config) *Gate {
	ctx, cancel := context.WithCancel(context.Background())
	return &Gate{
		Listener: l, cfg: cfg.withDefaults(), ctx: ctx, cancel: cancel, room: make(chan struct{}, 1),
		unproven: map[netip.Addr][]*Conn{},
	}
}

// acceptPause is how long is waited where the process is out of descriptors: connections end by themselves, and clients
// try again.
const acceptPause = 50 * time.Millisecond

// Accept returns the next connection that there is room for; it is a *Conn. An error means that the listener is of no
// use any more: errors that pass, such as being out of descriptors, are waited for.
func (g *Gate) Accept() (net.Conn, error) {
	for {
		raw, err := g.Listener.Accept()
		switch {
		case err == nil:
		case g.ctx.Err() == nil && passes(err):
			g.pause(acceptPause)
			continue
		default:
			return nil, err
		}
		if c := g.admit(raw); c != nil {
			return c, nil
		}
	}
}

func passes(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.EINTR,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	var soft net.Error
	return errors.As(err, &soft) && soft.Timeout()
}

func (g *Gate) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-g.ctx.Done():
	case <-t.C:
	}
}

// admit counts a connection as unproven, or closes it and returns nil.
func (g *Gate) admit(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, gate: g, addr: addrOf(raw)}
	for {
		entered, loser, wait := g.enter(c)
		if loser != nil {
			g.refuse(loser.Conn)
		}
		switch {
		case entered:
			return c
		case !wait:
			g.refuse(raw)
			return nil
		}
		select {
		case <-g.room:
		case <-g.ctx.Done():
			_ = raw.Close()
			return nil
		}
	}
}

// enter counts a connection where there is room for it. Where there is none loser, if any, has lost its place to it, or
// it has to wait for the next that is done.
func (g *Gate) enter(c *Conn) (entered bool, loser *Conn, wait bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil || len(g.unproven[c.addr]) >= g.cfg.PerAddr {
		return false, nil, false
	}
	if g.count >= g.cfg.Total {
		most := g.unproven[c.addr]
		for _, conns := range g.unproven {
			if len(conns) > len(most) {
				most = conns
			}
		}
		if len(most) <= len(g.unproven[c.addr])+1 { // taking one away would only turn them round
			return false, nil, true
		}
		loser = most[len(most)-1] // the older ones are nearer to their proof
		g.dropLocked(loser)
	}
	c.counted = true
	g.unproven[c.addr] = append(g.unproven[c.addr], c)
	g.count++
	c.timer = time.AfterFunc(g.cfg.Time, func() {
		if g.leave(c) {
			_ = c.Conn.Close()
		}
	})
	return true, loser, false
}

// dropLocked stops counting a connection, and reports whether it was counted.
func (g *Gate) dropLocked(c *Conn) bool {
	if !c.counted {
		return false
	}
	c.counted = false
	c.timer.Stop()
	conns := g.unproven[c.addr]
	for i := range conns {
		if conns[i] == c {
			conns = append(conns[:i], conns[i+1:]...)
			break
		}
	}
	if len(conns) == 0 {
		delete(g.unproven, c.addr)
	} else {
		g.unproven[c.addr] = conns
	}
	g.count--
	return true
}

// leave stops counting a connection, and reports whether it was counted.
func (g *Gate) leave(c *Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.dropLocked(c)
	if left {
		select {
		case g.room <- struct{}{}:
		default:
		}
	}
	return left
}

func (g *Gate) refuse(raw net.Conn) {
	if g.cfg.Refuse != nil {
		_ = raw.SetWriteDeadline(time.Now().Add(acceptPause))
		g.cfg.Refuse(raw)
	}
	_ = raw.Close()
}

// Unproven is how many connections are counted now.
func (g *Gate) Unproven() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

// Close closes the listener and all connections that are unproven.
func (g *Gate) Close() error {
	g.cancel()
	err := g.Listener.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conns := range g.unproven {
		for _, c := range append([]*Conn(nil), conns...) {
			g.dropLocked(c)
			_ = c.Conn.Close()
		}
	}
	return err
}

// Proven says that a connection has shown who it is: it is not counted any more, and has no limit of time from the
// Gate. It reports false where the connection was closed before, or did not come from a Gate. Those that wrap one, as
// *tls.Conn does, are looked into.
func Proven(conn net.Conn) bool {
	for {
		switch c := conn.(type) {
		case *Conn:
			return c.gate.leave(c)
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return false
		}
	}
}

// addrOf is the remote address that a connection counts for. Sockets that have none, such as Unix sockets, share one.
func addrOf(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

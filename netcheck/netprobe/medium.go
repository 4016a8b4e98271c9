package netprobe

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Medium is a network that is rehearsed: what lies between this node's sockets and the real one. It changes what probes
// meet, and no verdict. Zero values change nothing.
type Medium struct {
	// Iface is what this node's interface is called, MTU its size in bytes, and Speed its speed in Mb/s.
	Iface      string
	MTU, Speed int
	// Clock is how far this node's clock is ahead of what it is.
	Clock time.Duration
	// Path returns the way to another node. The node that asks shapes both directions of it.
	Path func(peer string) Path
}

// Path is a way to another node. Zero values change nothing.
type Path struct {
	// Unreachable: nobody answers.
	Unreachable bool
	// RTT is what round trips take longer.
	RTT time.Duration
	// Rate is what all streams together carry in each direction, in bytes a second.
	Rate float64
	// Loss is the share of datagrams that are lost, and of segments that the sender's kernel says it has sent again.
	Loss float64
	// MTU is the largest packet that passes, in bytes; senders of larger ones are told so, unless it is Quiet.
	MTU   int
	Quiet bool
	// Seed is that of chance.
	Seed [32]byte
}

// end is this node's end of a path as the medium has it.
func (m *Medium) end(e End) End {
	if m == nil {
		return e
	}
	if m.Iface != "" {
		e.Iface = m.Iface
	}
	if m.MTU > 0 {
		e.MTU = m.MTU
	}
	if m.Speed > 0 {
		e.Speed = m.Speed
	}
	return e
}

// wall is what this node's wall clock shows at a time.
func (m *Medium) wall(t time.Time) time.Time {
	if m != nil {
		t = t.Add(m.Clock)
	}
	return t.Round(0)
}

// way returns the shaper of the way to a peer, nil where it is the real one.
func (m *Medium) way(peer string) *way {
	if m == nil || m.Path == nil {
		return nil
	}
	p := m.Path(peer)
	return &way{Path: p, out: pacer{rate: p.Rate}, back: pacer{rate: p.Rate}, chance: rand.New(rand.NewChaCha8(p.Seed))}
}

// way shapes all that goes over one path. A nil one shapes nothing.
type way struct {
	Path
	out, back pacer

	mu     sync.Mutex
	chance *rand.Rand
}

// dial connects as net.Dialer does.
func (w *way) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	if w == nil {
		return d.DialContext(ctx, "tcp", addr)
	}
	if w.Unreachable {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &shapedConn{TCPConn: conn.(*net.TCPConn), way: w, moved: make(chan struct{})}, nil
}

// carries reports whether a packet of so many bytes arrives. An error is what its sender is told.
func (w *way) carries(size int) (bool, error) {
	if w == nil {
		return true, nil
	}
	if w.MTU > 0 && size > w.MTU {
		if w.Quiet {
			return false, nil
		}
		return false, syscall.EMSGSIZE
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Loss <= 0 || w.chance.Float64() >= w.Loss, nil
}

// pacer spaces out bytes so that they come at a rate.
type pacer struct {
	rate float64 // in bytes a second; 0: no limit

	mu   sync.Mutex
	next time.Time // when all that came so far is through
}

// credit is how far a pacer may lag behind and catch up: timers of a busy machine are late by milliseconds.
const credit = 20 * time.Millisecond

// through returns when n more bytes are.
func (p *pacer) through(n int) time.Time {
	now := time.Now()
	if p.rate <= 0 {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if earliest := now.Add(-credit); p.next.Before(earliest) {
		p.next = earliest
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return p.next
}

// part is how many of n bytes are paced at once: what takes some milliseconds.
func (p *pacer) part(n int) int {
	const least, most = 1500, 64 << 10
	if p.rate <= 0 {
		return n
	}
	return min(n, max(least, min(most, int(p.rate*credit.Seconds()/4))))
}

// The directions of a connection, as seen from this end.
const (
	reads = iota
	writes
)

// shapedConn is a connection over a way. A round trip is late by half before the first write after a read, and by half
// after the first read after a write; bytes that follow each other are not.
type shapedConn struct {
	*net.TCPConn
	way *way

	mu        sync.Mutex
	last      int // direction
	deadlines [2]time.Time
	moved     chan struct{} // closed when a deadline was
}

// Write writes at the pace of the way.
func (c *shapedConn) Write(b []byte) (done int, err error) {
	late := c.turn(writes)
	for len(b) > 0 {
		part := b[:c.way.out.part(len(b))]
		if err := c.wait(writes, c.way.out.through(len(part)), late); err != nil {
			return done, err
		}
		n, err := c.TCPConn.Write(part)
		done += n
		if err != nil {
			return done, err
		}
		b, late = b[n:], 0
	}
	return done, nil
}

// Read reads at the pace of the way.
func (c *shapedConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b[:c.way.back.part(len(b))])
	if n > 0 {
		if err := c.wait(reads, c.way.back.through(n), c.turn(reads)); err != nil {
			return 0, err // it comes too late
		}
	}
	return n, err
}

// turn notes a direction, and returns by how much that is late.
func (c *shapedConn) turn(to int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == to {
		return 0
	}
	c.last = to
	return c.way.RTT / 2
}

// wait waits until a time, or for a duration if that is longer, or until the deadline of the direction.
func (c *shapedConn) wait(direction int, until time.Time, d time.Duration) error {
	if late := time.Now().Add(d); late.After(until) {
		until = late
	}
	for {
		c.mu.Lock()
		deadline, moved := c.deadlines[direction], c.moved
		c.mu.Unlock()
		now := time.Now()
		left := until.Sub(now)
		if !deadline.IsZero() {
			if !now.Before(deadline) {
				return os.ErrDeadlineExceeded
			}
			left = min(left, deadline.Sub(now))
		}
		if !now.Before(until) {
			return nil
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-moved:
		}
		t.Stop()
	}
}

func (c *shapedConn) move(t time.Time, directions ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range directions {
		c.deadlines[d] = t
	}
	close(c.moved)
	c.moved = make(chan struct{})
}

// SetDeadline is that of both directions.
func (c *shapedConn) SetDeadline(t time.Time) error {
	c.move(t, reads, writes)
	return c.TCPConn.SetDeadline(t)
}

// SetReadDeadline also ends a read that is late.
func (c *shapedConn) SetReadDeadline(t time.Time) error {
	c.move(t, reads)
	return c.TCPConn.SetReadDeadline(t)
}

// SetWriteDeadline also ends a write that is late.
func (c *shapedConn) SetWriteDeadline(t time.Time) error {
	c.move(t, writes)
	return c.TCPConn.SetWriteDeadline(t)
}

// sent is what the kernel would say of such a way.
func (c *shapedConn) sent() Sent {
	s := sentOver(c.TCPConn)
	s.Retransmitted += uint64(c.way.Loss * float64(s.Segments))
	if most := c.way.MTU - tcpHeaders(addrPort(c.LocalAddr()).Addr()); c.way.MTU > 0 && s.MSS > most {
		s.MSS = most
	}
	return s
}

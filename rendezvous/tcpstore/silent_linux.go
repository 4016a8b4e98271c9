package tcpstore

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A connection is silent until a handshake or a whole request has come from it. Nobody proves more than that: PyTorch's
// clients cannot. Silent ones are few for each address, and short.
//
// PyTorch 1.9-2.0 opens a second connection for each client, on which it says nothing unless keys are watched, and ends
// its process when that is closed. So as many silent connections as an address has others are left alone.
const (
	mostSilent   = 16 << 10 // of one address: as many clients as one machine starts at once
	leastSilent  = 64
	sourcesSwept = 256 // addresses without connections that may be remembered
)

// source is an address that clients come from.
type source struct {
	addr   netip.Addr
	silent atomic.Int32 // connections
	spoken atomic.Int32
}

// crowd knows where clients come from. Only the loop that accepts touches it; the counts belong to all.
type crowd struct {
	by      map[netip.Addr]*source
	limit   int32 // silent connections of one address
	sweepAt int
}

// newCrowd returns a crowd whose limit leaves most of the process's descriptors to others.
func newCrowd() crowd {
	limit := mostSilent
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/4 < mostSilent {
		limit = max(int(files.Cur/4), leastSilent)
	}
	return crowd{by: make(map[netip.Addr]*source), limit: int32(limit), sweepAt: sourcesSwept}
}

// enter counts a new connection from an address. It returns nil where it has too many silent ones.
func (k *crowd) enter(addr netip.Addr) *source {
	s := k.by[addr]
	if s == nil {
		if len(k.by) >= k.sweepAt {
			for a, old := range k.by {
				if old.silent.Load() == 0 && old.spoken.Load() == 0 {
					delete(k.by, a)
				}
			}
			k.sweepAt = max(sourcesSwept, 2*len(k.by))
		}
		s = &source{addr: addr}
		k.by[addr] = s
	}
	if s.silent.Load() >= k.limit+s.spoken.Load() {
		return nil
	}
	s.silent.Add(1)
	return s
}

// arrival is a connection that was accepted.
type arrival struct {
	fd   int
	from *source
}

func (a arrival) hangUp() {
	a.from.silent.Add(-1)
	_ = unix.Close(a.fd)
}

// mute is a connection that was silent when it was looked at last.
type mute struct {
	c    *conn
	till time.Time
}

// speaks notes that something valid has come from c.
func (c *conn) speaks() {
	c.spoke = true
	c.from.spoken.Add(1)
	c.from.silent.Add(-1)
}

// dismiss takes a silent connection from the counts of its address where it has more of them than others. The loops of
// a server decide at the same time, and must not dismiss one each where one is too many.
func (s *source) dismiss() bool {
	for {
		silent := s.silent.Load()
		if silent <= s.spoken.Load() {
			return false
		}
		if s.silent.CompareAndSwap(silent, silent-1) {
			return true
		}
	}
}

// gone takes c from the counts of its address.
func (c *conn) gone() {
	if c.dismissed {
		return
	}
	if c.spoke {
		c.from.spoken.Add(-1)
	} else {
		c.from.silent.Add(-1)
	}
}

// closeSilent closes connections that have been silent for too long, unless they may be the second ones of old clients.
func (l *loop) closeSilent(now time.Time) {
	n := 0
	for n < len(l.mutes) && !now.Before(l.mutes[n].till) {
		n++
	}
	due := l.mutes[:n:n]
	l.mutes = l.mutes[n:]
	for _, m := range due {
		c := m.c
		idle := len(c.in) == 0 && c.fill == nil
		switch {
		case c.closed || c.spoke:
		case idle && !c.from.dismiss():
			l.mutes = append(l.mutes, mute{c, now.Add(l.srv.cfg.SilentTimeout)})
		default:
			c.dismissed = idle
			if l.srv.due(c.from.addr, now) {
				l.srv.cfg.Log.Warn().Stringer("addr", c.from.addr).Int32("silent", c.from.silent.Load()).Dur("dur_ms",
					l.srv.cfg.SilentTimeout).
					Msg("the store closes connections that send nothing")
			}
			l.close(c, fmt.Errorf("%w: nothing came for %v", errProtocol, l.srv.cfg.SilentTimeout))
		}
	}
	if len(l.mutes) == 0 {
		l.mutes = nil
	}
}

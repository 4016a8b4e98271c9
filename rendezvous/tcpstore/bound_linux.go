package tcpstore

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// entryCost is about what a key costs beside its bytes and those of its value, and nodeCost what it costs to wait for
// one.
const (
	entryCost = 112
	nodeCost  = 144
)

// arrivingFrom is how many bytes of a request that is not whole count against the limit: a connection always has a
// little.
const arrivingFrom = 4 << 10

var errFull = errors.New("no room in the store")

// defaultTotal is what a store holds where nobody said: 1 GiB, or a quarter of the machine's memory where that is less.
func defaultTotal() int64 {
	total := int64(1 << 30)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total = min(total, int64(info.Totalram*uint64(max(info.Unit, 1))/4))
	}
	return max(total, 64<<20)
}

// heldLocked is how many bytes keys, values, waits and what is arriving or being sent have.
func (s *space) heldLocked() int64 { return s.stored + s.pool.live.Load() }

// roomForLocked refuses a request that would make the space hold more than its limit. n is its length. What frees
// memory, asks for something, or gives a key a value that is no longer than before is never refused.
func (s *space) roomForLocked(o op, r request, n int, w *waiter) error {
	switch o {
	case opSet, opCompareSet, opAdd, opAppend, opMultiSet, opQueuePush, opWait, opBarrier:
	default:
		return nil
	}
	// Each key has 8 bytes for its length: it cannot cost more than this.
	if held := s.heldLocked(); held+entryCost+nodeCost+32*int64(n) > s.limitFor(false) {
		grows, agents := s.growthLocked(o, r, w)
		if limit := s.limitFor(agents); grows > 0 && held+grows > limit {
			return fmt.Errorf("%w: %d bytes are held, and the limit is %d: %v of %d bytes", errFull, held, limit, o, n)
		}
	}
	return nil
}

// reserveShare is which part of a store that has keys of agents is kept free for them, and maxReserve how many bytes at
// most: without their keys the job ends, and what they need does not depend on what workers keep.
const (
	reserveShare = 8
	maxReserve   = 64 << 20
)

// limitFor is how many bytes may be held when keys of the agents are added, or others.
func (s *space) limitFor(agents bool) int64 {
	if s.private == "" || agents {
		return s.lim.Total
	}
	return s.lim.Total - min(s.lim.Total/reserveShare, maxReserve)
}

// isAgents reports whether a key is one of the agents'.
func (s *space) isAgents(key []byte) bool {
	return s.private != "" && bytes.HasPrefix(key, []byte(s.private))
}

// growthLocked is by how much a request makes the space grow, and whether all of that is for keys of the agents.
func (s *space) growthLocked(o op, r request, w *waiter) (grows int64, agents bool) {
	agents = true
	set := func(key []byte, size int) (more int64) {
		if e := s.of(key, w).keys[string(key)]; e == nil {
			more = int64(entryCost + len(key) + size)
		} else {
			more = max(0, int64(size-e.reusable()))
		}
		agents = agents && (more == 0 || s.isAgents(key))
		return more
	}
	switch o { //nolint:exhaustive // the others add nothing
	case opSet, opAppend:
		key := r.bytes()
		size := len(r.bytes())
		if e := s.of(key, w).keys[string(key)]; e != nil && o == opAppend {
			size += len(e.bytes())
		}
		grows = set(key, size)
	case opCompareSet:
		key, expected := r.bytes(), r.bytes()
		if e := s.of(key, w).keys[string(key)]; e == nil && len(expected) == 0 || e != nil && string(e.bytes()) == string(expected) {
			grows = set(key, len(r.bytes()))
		}
	case opAdd, opBarrier:
		if key := r.bytes(); s.of(key, w).keys[string(key)] == nil {
			grows = set(key, 20)
		}
	case opMultiSet:
		for range r.u64() {
			key := r.bytes()
			grows += set(key, len(r.bytes()))
		}
	case opQueuePush:
		key := r.bytes()
		grows, agents = int64(entryCost+len(r.bytes())), s.isAgents(key)
		if s.of(key, w).queues[string(key)] == nil {
			grows += int64(entryCost + len(key))
		}
	case opWait:
		for range r.u64() {
			if key := r.bytes(); !s.of(key, w).presentLocked(key) {
				grows += int64(nodeCost + len(key))
				agents = agents && s.isAgents(key)
			}
		}
	}
	return grows, agents
}

// roomForAppendLocked refuses to append size bytes, which count already, to a value that unread replies hold: it is
// kept for them beside its copy.
func (s *space) roomForAppendLocked(e *entry, size int) error {
	if e == nil || !e.shared() {
		return nil
	}
	if held, grows := s.heldLocked(), int64(len(e.bytes())+size); held+grows > s.lim.Total {
		return fmt.Errorf("%w: %d bytes are held, and the limit is %d: a copy of a value of %d bytes", errFull, held, s.lim.Total, grows)
	}
	return nil
}

// roomForValueLocked is roomForLocked for a big value that is about to be read into place.
func (s *space) roomForValueLocked(key []byte, size int) error {
	if held, limit := s.heldLocked(), s.limitFor(s.isAgents(key)); held+int64(size) > limit {
		return fmt.Errorf("%w: %d bytes are held, and the limit is %d: a value of %d bytes", errFull, held, limit, size)
	}
	return nil
}

// count tells the space how much of a request that is not whole c keeps.
func (l *loop) count(c *conn) error {
	n := cap(c.in)
	if n < arrivingFrom {
		n = 0
	}
	if n == int(c.counted) {
		return nil
	}
	s, more := l.srv.space, int64(n)-int64(c.counted)
	s.mu.Lock()
	defer s.mu.Unlock()
	if held, limit := s.heldLocked(), s.limitFor(c.agent); more > 0 && held+more > limit { // it is not counted: c is closed now
		return fmt.Errorf("%w: %d bytes are held, and the limit is %d: a request of more than %d bytes", errFull, held, limit, n)
	}
	s.pool.live.Add(more)
	c.counted = int32(n)
	return nil
}

// noteFull leaves it for the agents.
func (s *space) noteFull(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agents.storeLocked([]byte(s.private+KeyFull), []byte(why.Error()), nil)
}

// refuse writes down that a client was closed because the store is full.
func (l *loop) refuse(c *conn, err error) {
	if c.agent {
		l.srv.space.noteFull(err)
	}
	if addr := c.from.addr; l.srv.due(addr, time.Now()) {
		l.srv.cfg.Log.Error().Err(err).Str("addr", peerName(int(c.fd))).Int64("limit", l.srv.cfg.Limits.Total).
			Msg("the store is full: a client that wanted to add to it was closed")
	}
}

// notices remembers of which addresses the log has a line.
type notices struct {
	mu   sync.Mutex
	said map[netip.Addr]time.Time
}

// due reports whether it is time for a line about an address. Of more addresses than are remembered nothing is said.
func (n *notices) due(addr netip.Addr, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last, ok := n.said[addr]; ok && now.Sub(last) < refusalPause {
		return false
	}
	if len(n.said) >= refusalNames {
		for a, last := range n.said {
			if now.Sub(last) >= refusalPause {
				delete(n.said, a)
			}
		}
		if len(n.said) >= refusalNames {
			return false
		}
	}
	if n.said == nil {
		n.said = make(map[netip.Addr]time.Time)
	}
	n.said[addr] = now
	return true
}

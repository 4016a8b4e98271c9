package tcpstore

import (
	"fmt"
	"sync"
)

// hoardFrom is how many bytes of replies a connection may leave unread, big values left out, before the hoard knows of
// it.
const hoardFrom = 64 << 10

// hoard keeps count of the connections that leave much unread, over all loops. Big values do not count, since they are
// not copied; the places in replies where they go do.
type hoard struct {
	mu    sync.Mutex
	total int
	by    map[*conn]int
}

// put notes that c holds n bytes. If all together hold more than limit, it forgets the one that holds most, and returns
// it to be closed.
func (h *hoard) put(c *conn, n, limit int) (victim *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total += n - h.by[c]
	if n == 0 {
		delete(h.by, c)
		return nil
	}
	if h.by == nil {
		h.by = make(map[*conn]int)
	}
	h.by[c] = n
	if h.total <= limit {
		return nil
	}
	for o, held := range h.by {
		if victim == nil || held > h.by[victim] {
			victim = o
		}
	}
	h.total -= h.by[victim]
	delete(h.by, victim)
	return victim
}

// hoards tells the hoard what c holds now. It may close c or another connection.
func (l *loop) hoards(c *conn, n int) {
	c.hoards = n > 0
	limit := l.srv.cfg.Limits.ReplyTotal
	victim := l.srv.hoard.put(c, n, limit)
	if victim == nil {
		return
	}
	evict := func() {
		victim.loop.close(victim, fmt.Errorf("%w: most of more than %d bytes of unread replies", errProtocol, limit))
	}
	if victim.loop == l {
		evict()
	} else {
		victim.loop.post(evict)
	}
}

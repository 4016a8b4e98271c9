//go:build linux

package tcpstore

// waiter is a connection that may have one WAIT or BARRIER pending.
type waiter struct {
	wait *wait // nil: none; guarded by space.mu
	due  int   // replies "stop waiting" that are earned and not yet sent; guarded by space.mu
	conn *conn

	// claims is where a push to the queue claim has woken it and it has not popped yet, nil if that is not so: when it
	// never will, the next one must be woken in its place. Guarded by space.mu.
	claims *keyspace
	claim  string
}

// wait is one pending WAIT or BARRIER.
type wait struct {
	by    *waiter
	left  int // keys not seen yet
	nodes []waitNode
	cost  int64 // what it counts for in space.stored
}

// endLocked takes the pending wait of w away.
func (s *space) endLocked(w *waiter) {
	s.stored -= w.wait.cost
	w.wait = nil
}

// waitNode is a wait's place in the list of one key.
type waitNode struct {
	wait       *wait
	list       *waitList // nil once removed
	prev, next *waitNode
}

// waitList is who waits for one key, oldest first.
type waitList struct {
	table       map[string]*waitList
	key         string
	first, last *waitNode
}

func (l *waitList) remove(n *waitNode) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.last = n.prev
	}
	n.prev, n.next, n.list = nil, nil, nil
	if l.first == nil {
		delete(l.table, l.key)
	}
}

func addNode(table map[string]*waitList, key []byte, n *waitNode) {
	l := table[string(key)]
	if l == nil {
		l = &waitList{table: table, key: string(key)}
		table[l.key] = l
	}
	n.list, n.prev = l, l.last
	if l.last != nil {
		l.last.next = n
	} else {
		l.first = n
	}
	l.last = n
}

// wakeOneLocked has l's key, a queue that is not empty, seen by those who wait for it, oldest first, until that
// completes the wait of one: one element, one popper.
func (ks *keyspace) wakeOneLocked(l *waitList) {
	for l.first != nil {
		w := l.first.wait
		for i := range w.nodes {
			if n := &w.nodes[i]; n.list == l {
				l.remove(n)
				w.left--
			}
		}
		if w.left == 0 {
			ks.space.endLocked(w.by)
			w.by.claims, w.by.claim = ks, l.key
			ks.space.wakeLocked(w.by)
			return
		}
	}
}

// passOnLocked wakes the next waiter of the queue that w was woken for and will not pop.
func (s *space) passOnLocked(w *waiter) {
	ks := w.claims
	if ks == nil {
		return
	}
	w.claims = nil
	if l := ks.waiters[w.claim]; l != nil && ks.queues[w.claim].len() > 0 {
		ks.wakeOneLocked(l)
	}
	w.claim = ""
}

// dropWaitLocked forgets what w waits for.
func (s *space) dropWaitLocked(w *waiter) {
	if w.wait == nil {
		return
	}
	for i := range w.wait.nodes {
		if n := &w.wait.nodes[i]; n.list != nil {
			n.list.remove(n)
		}
	}
	s.endLocked(w)
}

func (s *space) wakeLocked(w *waiter) {
	w.due++
	s.woken = append(s.woken, w)
}

// seenLocked counts the key of the first node of l as seen.
func (s *space) seenLocked(l *waitList) {
	n := l.first
	w := n.wait
	l.remove(n)
	if w.left--; w.left == 0 {
		s.endLocked(w.by)
		s.wakeLocked(w.by)
	}
}

func (s *space) wakeAllLocked(table map[string]*waitList, key []byte) {
	if l := table[string(key)]; l != nil {
		for l.first != nil {
			s.seenLocked(l)
		}
	}
}

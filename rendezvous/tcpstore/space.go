//go:build linux

package tcpstore

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
)

// space is what the clients share: keys, queues, and who waits for them. One lock guards all of it: a request holds it
// for some hundred nanoseconds, a hundredth of what its system calls cost, and WAIT on several keys stays simple.
type space struct {
	lim  Limits
	pool *blobPool

	mu       sync.Mutex
	keys     map[string]*entry
	names    int                // bytes of all keys
	queues   map[string][]entry // no empty ones
	waiters  map[string]*waitList
	barriers map[string]*waitList // apart from waiters: setting a barrier's key does not open it, unlike upstream
	woken    []*waiter            // whose due has grown since the one who holds the lock last looked
}

func newSpace(lim Limits, pool *blobPool) *space {
	s := &space{lim: lim, pool: pool}
	s.clearLocked()
	return s
}

func (s *space) clearLocked() {
	s.keys, s.names = make(map[string]*entry), 0
	s.queues = make(map[string][]entry)
	s.waiters = make(map[string]*waitList)
	s.barriers = make(map[string]*waitList)
	s.woken = nil
	s.pool.drop()
}

// entry is a value: in val below bigValue bytes, else in big.
type entry struct {
	val []byte
	big *blob
}

func (e *entry) bytes() []byte {
	if e.big != nil {
		return e.big.b
	}
	return e.val
}

// waiter is a connection that may have one WAIT or BARRIER pending.
type waiter struct {
	wait *wait // nil: none; guarded by space.mu
	due  int   // replies "stop waiting" that are earned and not yet sent; guarded by space.mu
	conn *conn

	// claims says that a push to the queue claim has woken it and it has not popped yet: when it never will, the next one
	// must be woken in its place. Guarded by space.mu.
	claims bool
	claim  string
}

// wait is one pending WAIT or BARRIER.
type wait struct {
	by    *waiter
	left  int // keys not seen yet
	nodes []waitNode
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

// wakeOneLocked has l's key, a queue that is not empty, seen by those who wait for it, oldest first, until that completes
// the wait of one: one element, one popper.
func (s *space) wakeOneLocked(l *waitList) {
	for l.first != nil {
		w := l.first.wait
		for i := range w.nodes {
			if n := &w.nodes[i]; n.list == l {
				l.remove(n)
				w.left--
			}
		}
		if w.left == 0 {
			w.by.wait = nil
			w.by.claims, w.by.claim = true, l.key
			s.wakeLocked(w.by)
			return
		}
	}
}

// passOnLocked wakes the next waiter of the queue that w was woken for and will not pop.
func (s *space) passOnLocked(w *waiter) {
	if !w.claims {
		return
	}
	w.claims = false
	if l := s.waiters[w.claim]; l != nil && len(s.queues[w.claim]) > 0 {
		s.wakeOneLocked(l)
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
	w.wait = nil
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
		w.by.wait = nil
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

// storeLocked sets key to val. A non-nil big holds val and belongs to the entry from here on.
func (s *space) storeLocked(key, val []byte, big *blob) {
	e := s.keys[string(key)]
	if e == nil {
		e = &entry{}
		s.keys[string(key)] = e
		s.names += len(key)
		s.fillLocked(e, val, big)
		s.wakeAllLocked(s.waiters, key)
		return
	}
	s.fillLocked(e, val, big)
}

func (s *space) fillLocked(e *entry, val []byte, big *blob) {
	if e.big != nil {
		s.pool.release(e.big)
		e.big = nil
	}
	switch {
	case big != nil:
		e.big, e.val = big, nil
	case len(val) >= bigValue:
		e.big, e.val = s.pool.get(len(val), len(val)), nil
		e.big.b = append(e.big.b, val...)
	default:
		if cap(e.val) > 64 && cap(e.val) > 2*len(val) {
			e.val = nil // do not keep kilobytes for a value that has become small
		}
		e.val = append(e.val[:0], val...)
	}
}

func (s *space) appendLocked(key, val []byte) error {
	e := s.keys[string(key)]
	if e == nil {
		s.storeLocked(key, val, nil)
		return nil
	}
	old := e.bytes()
	if len(old)+len(val) > math.MaxInt32 {
		return fmt.Errorf("%w: APPEND to a value of %d bytes", errProtocol, len(old))
	}
	switch {
	case e.big != nil && cap(old)-len(old) >= len(val) && e.big.refs.Load() == 1:
		e.big.b = append(old, val...)
	case len(old)+len(val) >= bigValue:
		b := s.pool.get(max(2*len(old), len(old)+len(val)), len(old)+len(val))
		b.b = append(append(b.b, old...), val...)
		s.fillLocked(e, nil, b)
	default:
		e.val = append(e.val, val...)
	}
	return nil
}

func (s *space) addLocked(key []byte, delta int64) (int64, error) {
	var sum int64
	e := s.keys[string(key)]
	if e != nil {
		n, err := stoll(e.bytes())
		if err != nil {
			return 0, err
		}
		sum = n
	}
	sum += delta
	var buf [20]byte
	text := strconv.AppendInt(buf[:0], sum, 10)
	s.storeLocked(key, text, nil)
	return sum, nil
}

// stoll reads a decimal number as C++'s std::stoll does, which is how PyTorch's servers keep counters: leading blanks
// are skipped, and what follows the digits is ignored.
func stoll(b []byte) (int64, error) {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] >= '\t' && b[i] <= '\r') {
		i++
	}
	start := i
	if i < len(b) && (b[i] == '+' || b[i] == '-') {
		i++
	}
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(string(b[start:i]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the value is no number", errProtocol)
	}
	return n, nil
}

// presentLocked says whether WAIT and CHECK count key as there: a queue with something in it counts.
func (s *space) presentLocked(key []byte) bool {
	if _, ok := s.keys[string(key)]; ok {
		return true
	}
	_, ok := s.queues[string(key)]
	return ok
}

func (s *space) waitLocked(w *waiter, n int, r *request) {
	s.dropWaitLocked(w)
	missing, scan := 0, *r
	for range n {
		if !s.presentLocked(scan.bytes()) {
			missing++
		}
	}
	if missing == 0 {
		s.wakeLocked(w)
		return
	}
	s.passOnLocked(w)
	w.wait = &wait{by: w, left: missing, nodes: make([]waitNode, missing)}
	i := 0
	for range n {
		key := r.bytes()
		if !s.presentLocked(key) {
			w.wait.nodes[i].wait = w.wait
			addNode(s.waiters, key, &w.wait.nodes[i])
			i++
		}
	}
}

func (s *space) barrierLocked(w *waiter, key []byte, world int64) error {
	s.dropWaitLocked(w)
	count, err := s.addLocked(key, 1)
	if err != nil {
		return err
	}
	if count >= world {
		s.wakeAllLocked(s.barriers, key)
		s.wakeLocked(w)
		return nil
	}
	w.wait = &wait{by: w, left: 1, nodes: make([]waitNode, 1)}
	w.wait.nodes[0].wait = w.wait
	addNode(s.barriers, key, &w.wait.nodes[0])
	return nil
}

func (s *space) pushLocked(key, val []byte, big *blob) {
	var e entry
	s.fillLocked(&e, val, big)
	s.queues[string(key)] = append(s.queues[string(key)], e)
	if l := s.waiters[string(key)]; l != nil {
		s.wakeOneLocked(l)
	}
}

// popLocked takes the oldest element of the queue and returns the length the queue had. The caller takes over e.big.
func (s *space) popLocked(key []byte) (e entry, n int) {
	q := s.queues[string(key)]
	if len(q) == 0 {
		return entry{}, 0
	}
	e, q[0] = q[0], entry{}
	if len(q) == 1 {
		delete(s.queues, string(key))
	} else {
		s.queues[string(key)] = q[1:]
	}
	return e, len(q)
}

func (s *space) deleteLocked(key []byte) bool {
	e, ok := s.keys[string(key)]
	if !ok {
		return false
	}
	if e.big != nil {
		s.pool.release(e.big)
	}
	delete(s.keys, string(key))
	s.names -= len(key)
	return true
}

const keepReply = 1 << 20 // bytes of a reply buffer that are worth keeping for the next reply

// reply collects what a connection gets for the requests of one read.
type reply struct {
	buf  []byte
	cuts []cut // big values, in order
	big  int   // bytes of the big values
}

// cut says that a big value goes out before buf[at:].
type cut struct {
	at   int
	b    []byte
	blob *blob
}

func (r *reply) reset() {
	if cap(r.buf) > keepReply {
		r.buf = nil
	}
	clear(r.cuts)
	r.buf, r.cuts, r.big = r.buf[:0], r.cuts[:0], 0
}

func (r *reply) size() int { return len(r.buf) + r.big }

func (r *reply) value(e *entry) {
	if e == nil {
		r.buf = appendU64(r.buf, 0)
		return
	}
	if e.big == nil {
		r.buf = appendBytes(r.buf, e.val)
		return
	}
	r.buf = appendU64(r.buf, uint64(len(e.big.b)))
	r.cuts = append(r.cuts, cut{at: len(r.buf), b: e.big.b, blob: e.big.hold()})
	r.big += len(e.big.b)
}

// do carries out one whole request for w and appends its answer to out. An error means that the connection must go;
// the answers before it still stand.
func (s *space) do(o op, r request, w *waiter, out *reply) error {
	switch o {
	case opValidate:
		return fmt.Errorf("%w: second VALIDATE", errProtocol)
	case opPing:
		out.buf = append(out.buf, r[:4]...)
	case opSet:
		key := r.bytes()
		s.storeLocked(key, r.bytes(), nil)
	case opCompareSet:
		s.compareSetLocked(r.bytes(), r.bytes(), r.bytes(), out)
	case opGet:
		out.value(s.keys[string(r.bytes())])
	case opAdd:
		key := r.bytes()
		n, err := s.addLocked(key, r.i64())
		if err != nil {
			return err
		}
		out.buf = appendU64(out.buf, uint64(n))
	case opCheck:
		answer := byte(replyStop)
		for range r.u64() {
			if !s.presentLocked(r.bytes()) {
				answer = replyMissing
			}
		}
		out.buf = append(out.buf, answer)
	case opWait:
		n := r.u64()
		s.waitLocked(w, int(n), &r)
	case opNumKeys:
		out.buf = appendU64(out.buf, uint64(len(s.keys)))
	case opDelete:
		n := uint64(0)
		if s.deleteLocked(r.bytes()) {
			n = 1
		}
		out.buf = appendU64(out.buf, n)
	case opAppend:
		key := r.bytes()
		return s.appendLocked(key, r.bytes())
	case opMultiGet:
		n, size, scan := r.u64(), 0, r
		for range n {
			size += 8
			if e := s.keys[string(scan.bytes())]; e != nil && e.big == nil {
				size += len(e.val)
			}
		}
		if err := s.roomLocked(o, size, out); err != nil {
			return err
		}
		for range n {
			out.value(s.keys[string(r.bytes())])
		}
	case opMultiSet:
		for range r.u64() {
			key := r.bytes()
			s.storeLocked(key, r.bytes(), nil)
		}
	case opCancelWait:
		s.dropWaitLocked(w)
		s.passOnLocked(w)
		out.buf = append(out.buf, replyCancelled)
	case opQueuePush:
		key := r.bytes()
		s.pushLocked(key, r.bytes(), nil)
	case opQueuePop:
		key := r.bytes()
		if w.claims && w.claim == string(key) {
			w.claims, w.claim = false, ""
		}
		e, n := s.popLocked(key)
		out.buf = appendU64(out.buf, uint64(n))
		if n > 0 {
			out.value(&e)
			if e.big != nil {
				s.pool.release(e.big)
			}
		}
	case opQueueLen:
		out.buf = appendU64(out.buf, uint64(len(s.queues[string(r.bytes())])))
	case opListKeys:
		if err := s.roomLocked(o, 8+8*len(s.keys)+s.names, out); err != nil {
			return err
		}
		out.buf = appendU64(out.buf, uint64(len(s.keys)))
		for k := range s.keys {
			out.buf = appendBytes(out.buf, k)
		}
	case opBarrier:
		key := r.bytes()
		return s.barrierLocked(w, key, r.i64())
	case opWatchKey:
		// Nothing in PyTorch's launcher or process groups watches keys; the registration is acknowledged as their server
		// does, and no change is ever reported.
		out.buf = append(out.buf, replyWatching)
	default:
		return fmt.Errorf("%w: %v", errProtocol, o)
	}
	return nil
}

// roomLocked makes room in out for a reply of size bytes beside big values, before any of it is written: a client that was
// promised a list must get all of it.
func (s *space) roomLocked(o op, size int, out *reply) error {
	if size > s.lim.ReplyAtOnce {
		return fmt.Errorf("%w: answer of %d bytes to %v, limit %d", errProtocol, size, o, s.lim.ReplyAtOnce)
	}
	out.buf = slices.Grow(out.buf, size)
	return nil
}

func (s *space) compareSetLocked(key, expected, desired []byte, out *reply) {
	e := s.keys[string(key)]
	switch {
	case e == nil && len(expected) > 0:
		// PyTorch's stores answer with the expected value although nothing is stored; clients rely on the answer.
		out.buf = appendBytes(out.buf, expected)
		return
	case e == nil || string(e.bytes()) == string(expected):
		s.storeLocked(key, desired, nil)
		e = s.keys[string(key)]
	}
	out.value(e)
}

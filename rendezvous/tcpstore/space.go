//go:build linux

package tcpstore

import (
	"fmt"
	"slices"
	"sync"
)

// space is what the clients share. One lock guards all of it: a request holds it for some hundred nanoseconds, a
// hundredth of what its system calls cost, and WAIT on several keys stays simple.
type space struct {
	lim     Limits
	pool    *blobPool
	private string // what begins every key of the agents; empty: they have none of their own

	mu      sync.Mutex
	workers keyspace
	agents  keyspace
	stored  int64     // bytes of keys, of small values, and of waits; see heldLocked
	asked   uint64    // how many requests were carried out
	woken   []*waiter // whose due has grown since the one who holds the lock last looked
}

func newSpace(lim Limits, private string, pool *blobPool) *space {
	if lim.Total <= 0 {
		lim.Total = defaultTotal()
	}
	s := &space{lim: lim, private: private, pool: pool}
	s.workers.space, s.agents.space = s, s
	s.workers.clearLocked()
	s.agents.clearLocked()
	return s
}

// of returns where a key that the client w names lives. Who names one of the agents' is one of them from then on.
func (s *space) of(key []byte, w *waiter) *keyspace {
	if n := len(s.private); n == 0 || len(key) < n || string(key[:n]) != s.private {
		return &s.workers
	}
	w.conn.agent = true
	return &s.agents
}

// beginLocked begins a round: what the workers had is gone.
func (s *space) beginLocked() {
	s.workers.clearLocked()
	s.woken = nil
	s.pool.drop()
}

// unclaimLocked has conns, which are the agents', forget what they were about to pop from the workers' queues.
func (s *space) unclaimLocked(conns []*conn) {
	for _, c := range conns {
		if c != nil && c.claims == &s.workers {
			c.claims, c.claim = nil, ""
		}
	}
}

func (s *space) waitLocked(w *waiter, n int, r *request) {
	s.dropWaitLocked(w)
	missing, scan := 0, *r
	for range n {
		if key := scan.bytes(); !s.of(key, w).presentLocked(key) {
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
		if ks := s.of(key, w); !ks.presentLocked(key) {
			w.wait.nodes[i].wait = w.wait
			w.wait.cost += int64(nodeCost + len(key))
			addNode(ks.waiters, key, &w.wait.nodes[i])
			i++
		}
	}
	s.stored += w.wait.cost
}

func (s *space) barrierLocked(w *waiter, key []byte, world int64) error {
	s.dropWaitLocked(w)
	ks := s.of(key, w)
	count, err := ks.addLocked(key, 1)
	if err != nil {
		return err
	}
	if count >= world {
		s.wakeAllLocked(ks.barriers, key)
		s.wakeLocked(w)
		return nil
	}
	w.wait = &wait{by: w, left: 1, nodes: make([]waitNode, 1), cost: int64(nodeCost + len(key))}
	s.stored += w.wait.cost
	w.wait.nodes[0].wait = w.wait
	addNode(ks.barriers, key, &w.wait.nodes[0])
	return nil
}

// do carries out one whole request for w and appends its answer to out. An error means that the connection must go;
// the answers before it still stand.
func (s *space) do(o op, r request, w *waiter, out *reply) error {
	s.asked++
	switch o {
	case opValidate:
		return fmt.Errorf("%w: second VALIDATE", errProtocol)
	case opPing:
		out.buf = append(out.buf, r[:4]...)
	case opSet:
		key := r.bytes()
		s.of(key, w).storeLocked(key, r.bytes(), nil)
	case opCompareSet:
		key := r.bytes()
		s.of(key, w).compareSetLocked(key, r.bytes(), r.bytes(), out)
	case opGet:
		key := r.bytes()
		out.value(s.of(key, w).keys[string(key)])
	case opAdd:
		key := r.bytes()
		n, err := s.of(key, w).addLocked(key, r.i64())
		if err != nil {
			return err
		}
		out.buf = appendU64(out.buf, uint64(n))
	case opCheck:
		answer := byte(replyStop)
		for range r.u64() {
			if key := r.bytes(); !s.of(key, w).presentLocked(key) {
				answer = replyMissing
			}
		}
		out.buf = append(out.buf, answer)
	case opWait:
		n := r.u64()
		s.waitLocked(w, int(n), &r)
	case opNumKeys:
		out.buf = appendU64(out.buf, uint64(len(s.workers.keys)))
	case opDelete:
		key, n := r.bytes(), uint64(0)
		if s.of(key, w).deleteLocked(key) {
			n = 1
		}
		out.buf = appendU64(out.buf, n)
	case opAppend:
		key := r.bytes()
		return s.of(key, w).appendLocked(key, r.bytes())
	case opMultiGet:
		n, size, scan := r.u64(), 0, r
		for range n {
			size += 8
			key := scan.bytes()
			if e := s.of(key, w).keys[string(key)]; e != nil && e.big == nil {
				size += len(e.val)
			}
		}
		if err := s.roomLocked(o, size, s.lim.ReplyAtOnce, out); err != nil {
			return err
		}
		for range n {
			key := r.bytes()
			out.value(s.of(key, w).keys[string(key)])
		}
	case opMultiSet:
		for range r.u64() {
			key := r.bytes()
			s.of(key, w).storeLocked(key, r.bytes(), nil)
		}
	case opCancelWait:
		s.dropWaitLocked(w)
		s.passOnLocked(w)
		out.buf = append(out.buf, replyCancelled)
	case opQueuePush:
		key := r.bytes()
		s.of(key, w).pushLocked(key, r.bytes(), nil)
	case opQueuePop:
		key := r.bytes()
		ks := s.of(key, w)
		if w.claims == ks && w.claim == string(key) {
			w.claims, w.claim = nil, ""
		}
		e, n := ks.popLocked(key)
		out.buf = appendU64(out.buf, uint64(n))
		if n > 0 {
			out.value(&e)
			if e.big != nil {
				s.pool.release(e.big)
			}
		}
	case opQueueLen:
		key := r.bytes()
		out.buf = appendU64(out.buf, uint64(s.of(key, w).queues[string(key)].len()))
	case opListKeys:
		size, keys := 8+8*len(s.workers.keys)+s.workers.names, len(s.workers.keys)
		if err := s.roomLocked(o, size, min(s.lim.ReplyAtOnce, s.lim.ListAtOnce-listCost*keys), out); err != nil {
			return err
		}
		out.buf = appendU64(out.buf, uint64(len(s.workers.keys)))
		for k := range s.workers.keys {
			out.buf = appendBytes(out.buf, k)
		}
	case opBarrier:
		key := r.bytes()
		return s.barrierLocked(w, key, r.i64())
	case opWatchKey:
		// Nothing in PyTorch's launcher or process groups watches keys; the registration is acknowledged as their
		// server does, and no change is ever reported.
		s.of(r.bytes(), w)
		out.buf = append(out.buf, replyWatching)
	default:
		return fmt.Errorf("%w: %v", errProtocol, o)
	}
	return nil
}

// listCost is what it takes to find a key for a list, as bytes that are copied in the same time.
const listCost = 100

// roomLocked makes room in out for a reply of size bytes beside big values, before any of it is written: a client that
// was promised a list must get all of it.
func (s *space) roomLocked(o op, size, limit int, out *reply) error {
	if size > limit {
		return fmt.Errorf("%w: answer of %d bytes to %v, limit %d", errProtocol, size, o, limit)
	}
	out.buf = slices.Grow(out.buf, size)
	return nil
}

//go:build linux

package tcpstore

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// keyspace is keys, queues, and who waits for them.
type keyspace struct {
	space *space

	keys     map[string]*entry
	names    int               // bytes of all keys
	queues   map[string]*queue // no empty ones
	waiters  map[string]*waitList
	barriers map[string]*waitList // apart from waiters: setting a barrier's key does not open it, unlike upstream
}

// clearLocked drops everything but the waits of connections that are still there: they go on waiting.
func (ks *keyspace) clearLocked() {
	for _, e := range ks.keys {
		ks.freeLocked(e)
	}
	for key, q := range ks.queues {
		for i := range q.items {
			ks.freeLocked(&q.items[i])
		}
		ks.space.stored -= int64(entryCost*(q.len()+1) + len(key))
	}
	ks.space.stored -= int64(ks.names + entryCost*len(ks.keys))
	ks.keys, ks.names = make(map[string]*entry), 0
	ks.queues = make(map[string]*queue)
	ks.waiters, ks.barriers = rehung(ks.waiters), rehung(ks.barriers)
}

// rehung moves the lists of a table into a new one: a map never gets smaller.
func rehung(table map[string]*waitList) map[string]*waitList {
	fresh := make(map[string]*waitList, len(table))
	for key, l := range table {
		l.table = fresh
		fresh[key] = l
	}
	return fresh
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

// shared reports whether unread replies hold the value, too: it then stays in memory when the entry gets another one.
func (e *entry) shared() bool { return e.big != nil && e.big.refs.Load() > 1 }

// reusable is how many bytes come free, or can be written to, when the entry gets another value.
func (e *entry) reusable() int {
	if e.shared() {
		return 0
	}
	return cap(e.bytes())
}

// freeLocked gives up what e holds.
func (ks *keyspace) freeLocked(e *entry) {
	ks.space.stored -= int64(cap(e.val))
	if e.big != nil {
		ks.space.pool.release(e.big)
	}
	*e = entry{}
}

// storeLocked sets key to val. A non-nil big holds val and belongs to the entry from here on.
func (ks *keyspace) storeLocked(key, val []byte, big *blob) {
	e := ks.keys[string(key)]
	if e == nil {
		e = &entry{}
		ks.keys[string(key)] = e
		ks.names += len(key)
		ks.space.stored += int64(entryCost + len(key))
		ks.fillLocked(e, val, big)
		ks.space.wakeAllLocked(ks.waiters, key)
		return
	}
	ks.fillLocked(e, val, big)
}

func (ks *keyspace) fillLocked(e *entry, val []byte, big *blob) {
	before := cap(e.val)
	if e.big != nil {
		ks.space.pool.release(e.big)
		e.big = nil
	}
	switch {
	case big != nil:
		e.big, e.val = big, nil
	case len(val) >= bigValue:
		e.big, e.val = ks.space.pool.get(len(val), len(val)), nil
		e.big.b = append(e.big.b, val...)
	default:
		if cap(e.val) > 64 && cap(e.val) > 2*len(val) {
			e.val = nil // do not keep kilobytes for a value that has become small
		}
		e.val = append(e.val[:0], val...)
	}
	ks.space.stored += int64(cap(e.val) - before)
}

func (ks *keyspace) appendLocked(key, val []byte) error {
	e := ks.keys[string(key)]
	if e == nil {
		ks.storeLocked(key, val, nil)
		return nil
	}
	old := e.bytes()
	if len(old)+len(val) > math.MaxInt32 {
		return fmt.Errorf("%w: APPEND to a value of %d bytes", errProtocol, len(old))
	}
	switch {
	case e.big != nil && cap(old)-len(old) >= len(val) && !e.shared():
		e.big.b = append(old, val...)
	case len(old)+len(val) >= bigValue:
		b := ks.space.pool.get(max(2*len(old), len(old)+len(val)), len(old)+len(val))
		b.b = append(append(b.b, old...), val...)
		ks.fillLocked(e, nil, b)
	default:
		before := cap(e.val)
		e.val = append(e.val, val...)
		ks.space.stored += int64(cap(e.val) - before)
	}
	return nil
}

func (ks *keyspace) addLocked(key []byte, delta int64) (int64, error) {
	var sum int64
	e := ks.keys[string(key)]
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
	ks.storeLocked(key, text, nil)
	return sum, nil
}

func (ks *keyspace) compareSetLocked(key, expected, desired []byte, out *reply) {
	e := ks.keys[string(key)]
	switch {
	case e == nil && len(expected) > 0:
		// PyTorch's stores answer with the expected value although nothing is stored; clients rely on the answer.
		out.buf = appendBytes(out.buf, expected)
		return
	case e == nil || string(e.bytes()) == string(expected):
		ks.storeLocked(key, desired, nil)
		e = ks.keys[string(key)]
	}
	out.value(e)
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
func (ks *keyspace) presentLocked(key []byte) bool {
	if _, ok := ks.keys[string(key)]; ok {
		return true
	}
	_, ok := ks.queues[string(key)]
	return ok
}

// queue is the elements of a queue, the oldest first, behind those that were popped.
type queue struct {
	items  []entry
	popped int
}

// fewPopped is how many places of popped elements a queue may keep, or as many as it has elements.
const fewPopped = 32

func (q *queue) len() int {
	if q == nil {
		return 0
	}
	return len(q.items) - q.popped
}

func (ks *keyspace) pushLocked(key, val []byte, big *blob) {
	q := ks.queues[string(key)]
	if q == nil {
		q = &queue{}
		ks.queues[string(key)] = q
		ks.space.stored += int64(entryCost + len(key))
	}
	var e entry
	ks.fillLocked(&e, val, big)
	ks.space.stored += entryCost
	q.items = append(q.items, e)
	if l := ks.waiters[string(key)]; l != nil {
		ks.wakeOneLocked(l)
	}
}

// popLocked takes the oldest element of the queue and returns the length the queue had. The caller takes over e.big.
func (ks *keyspace) popLocked(key []byte) (e entry, n int) {
	q := ks.queues[string(key)]
	n = q.len()
	if n == 0 {
		return entry{}, 0
	}
	e, q.items[q.popped] = q.items[q.popped], entry{}
	q.popped++
	ks.space.stored -= int64(entryCost + cap(e.val))
	switch {
	case n == 1:
		delete(ks.queues, string(key))
		ks.space.stored -= int64(entryCost + len(key))
	case q.popped > fewPopped && q.popped > len(q.items)/2: // what is popped counts no more, and must not take memory
		q.items, q.popped = slices.Clone(q.items[q.popped:]), 0
	}
	return e, n
}

func (ks *keyspace) deleteLocked(key []byte) bool {
	e, ok := ks.keys[string(key)]
	if !ok {
		return false
	}
	ks.freeLocked(e)
	delete(ks.keys, string(key))
	ks.names -= len(key)
	ks.space.stored -= int64(entryCost + len(key))
	return true
}

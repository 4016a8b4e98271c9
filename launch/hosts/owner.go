package hosts

import (
	"context"
	"net/netip"
	"sync"
)

// Ours asks a machine's agent whether the end at from of a connection to to, which comes from that machine, belongs to
// a process of the job's user or of root there. It does where from is no address of that machine, or where its kernel
// cannot tell.
func (f *Fleet) Ours(ctx context.Context, machine int, from, to netip.AddrPort) (bool, error) {
	f.mu.Lock()
	s := f.nodes[machine].session
	f.mu.Unlock()
	if s == nil {
		return false, errNotThere
	}
	id, answer := s.questions.open()
	defer s.questions.close(id)
	if err := s.wire.sendJSON(kindWhose, whoseMessage{id, from, to}); err != nil {
		return false, err
	}
	select {
	case ours := <-answer:
		return ours, nil
	case <-s.ended:
		return false, errNotThere
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// questions are those that an agent has not answered yet. The zero value has none.
type questions struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan bool
}

func (q *questions) open() (id uint64, answer <-chan bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[uint64]chan bool{}
	}
	q.last++
	c := make(chan bool, 1) // there is one answer
	q.waiting[q.last] = c
	return q.last, c
}

func (q *questions) close(id uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, id)
}

// answer passes an answer on to who has asked, if anybody still waits for it.
func (q *questions) answer(m ownerMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.waiting[m.ID]; c != nil {
		c <- m.Ours
		delete(q.waiting, m.ID)
	}
}

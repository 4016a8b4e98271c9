package hosts

import "sync"

// pending are the questions that an agent has not answered yet, by number, with answers of a type. The zero value has none.
type pending[T any] struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan T
}

func (p *pending[T]) open() (id uint64, answer <-chan T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[uint64]chan T{}
	}
	p.last++
	c := make(chan T, 1) // there is one answer
	p.waiting[p.last] = c
	return p.last, c
}

func (p *pending[T]) close(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// answer passes an answer on to who has asked, if anybody still waits for it.
func (p *pending[T]) answer(id uint64, said T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.waiting[id]; c != nil {
		c <- said
		delete(p.waiting, id)
	}
}

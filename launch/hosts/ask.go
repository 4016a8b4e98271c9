package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// asked are what an agent was asked and has not answered, by number. The zero value has none.
type asked struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]chan Answer
}

func (q *asked) begin() (uint64, <-chan Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	if q.open == nil {
		q.open = map[uint64]chan Answer{}
	}
	c := make(chan Answer, 1)
	q.open[q.last] = c
	return q.last, c
}

func (q *asked) end(id uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, id)
}

// answer hands an answer to who waits for it. Nobody may do so any more.
func (q *asked) answer(a Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.open[a.ID]; c != nil {
		c <- a
		delete(q.open, a.ID)
	}
}

// ask asks the agent for something, and returns what it says.
func (s *session) ask(ctx context.Context, m Ask) (string, error) {
	var answered <-chan Answer
	m.ID, answered = s.asked.begin()
	defer s.asked.end(m.ID)
	silent := errhint.Code(fmt.Errorf("node %s does not answer", s.name), errhint.TryAgain)
	if s.wire.sendJSON(kindAsk, m) != nil {
		return "", silent
	}
	select {
	case a := <-answered:
		if a.Error != "" {
			return "", errhint.Code(errhint.With(errors.New(printable.Output(a.Error)), printable.Output(a.Hint)), a.Status)
		}
		return printable.Output(a.Message), nil
	case <-s.ended:
	case <-ctx.Done():
	}
	return "", silent
}

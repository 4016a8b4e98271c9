package hosts

import (
	"context"
	"net/netip"
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

package tcpstore

// Waiting returns how many connections have a WAIT or BARRIER pending.
func Waiting(s *Server) int {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	waits := make(map[*wait]bool)
	for _, table := range s.space.tables() {
		for _, l := range table {
			for n := l.first; n != nil; n = n.next {
				waits[n.wait] = true
			}
		}
	}
	return len(waits)
}

// Held returns how many bytes count against Limits.Total.
func Held(s *Server) int64 {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.space.heldLocked()
}

// Awaited returns how many names are waited for, keys and barriers of one name counted apart.
func Awaited(s *Server) (n int) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for _, table := range s.space.tables() {
		n += len(table)
	}
	return n
}

func (s *space) tables() []map[string]*waitList {
	return []map[string]*waitList{s.workers.waiters, s.workers.barriers, s.agents.waiters, s.agents.barriers}
}

// Hold keeps the server's loops from doing anything until the returned function is called.
func Hold(s *Server) (release func()) {
	gate := make(chan struct{})
	for _, l := range s.loops {
		held := make(chan struct{})
		l.post(func() { close(held); <-gate })
		<-held
	}
	return func() { close(gate) }
}

// Hoarded returns how many bytes of unread replies count against Limits.ReplyTotal, and Hoarders how many connections
// leave them.
func Hoarded(s *Server) int {
	s.hoard.mu.Lock()
	defer s.hoard.mu.Unlock()
	return s.hoard.total
}

// Hoarders is how many connections Hoarded is about.
func Hoarders(s *Server) int {
	s.hoard.mu.Lock()
	defer s.hoard.mu.Unlock()
	return len(s.hoard.by)
}

// Telling is the error of the attempt to connect that says what is wrong.
var Telling = telling

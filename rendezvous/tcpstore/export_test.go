package tcpstore

// Waiting returns how many connections have a WAIT or BARRIER pending.
func Waiting(s *Server) int {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	waits := make(map[*wait]bool)
	for _, table := range []map[string]*waitList{s.space.waiters, s.space.barriers} {
		for _, l := range table {
			for n := l.first; n != nil; n = n.next {
				waits[n.wait] = true
			}
		}
	}
	return len(waits)
}

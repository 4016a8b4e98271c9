package memstore

// Waiting returns for how many keys somebody waits, how many waits that are, and how many clients are open.
func (s *Space) Waiting() (keys, waits, clients int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.waits {
		waits += len(of)
	}
	return len(s.waits), waits, len(s.clients)
}

package kv

// Most sets how many connections an address may have.
func (s *Server) Most(n int) { s.most = n }

package netprobe

import "time"

// SetClock gives the server another wall clock.
func (s *Server) SetClock(now func() time.Time) { s.now = now }

// ReadDatagram is readDatagram for its fuzz test.
func ReadDatagram(b, key []byte) bool {
	_, ok := readDatagram(b, key)
	return ok
}

// Banner is what a client says first.
const Banner = banner

// MaxMessage is how long a message may be.
const MaxMessage = maxMessage

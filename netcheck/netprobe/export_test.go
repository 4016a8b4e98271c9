package netprobe

import "time"

// SetClock gives the server another wall clock.
func (s *Server) SetClock(now func() time.Time) { s.now = now }

// ReadDatagram is readDatagram for its fuzz test.
func ReadDatagram(b, key []byte) bool {
	_, ok := readDatagram(b, key)
	return ok
}

// Bytes the fuzz test needs.
const (
	Hello     = hello
	NonceSize = nonceSize
)

// Proof is proof with the nonces as slices.
func Proof(token []byte, who string, client, server []byte) []byte {
	return proof(token, who, nonce(client), nonce(server))
}

// MaxMessage is how long a message may be.
const MaxMessage = maxMessage

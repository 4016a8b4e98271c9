package netprobe

import (
	"bytes"
	"time"
)

// SetClock gives the server another wall clock.
func (s *Server) SetClock(now func() time.Time) { s.now = now }

// ReadDatagram is readDatagram for its fuzz test.
func ReadDatagram(b, key []byte) bool {
	_, ok := readDatagram(b, key)
	return ok
}

// MaxMessage is how long a message may be.
const MaxMessage = maxMessage

// ReadRequest reads and checks a request. It returns what is asked for, "" where it is refused.
func ReadRequest(b []byte) string {
	var r request
	if readMessage(bytes.NewReader(b), &r) != nil || r.check() != nil {
		return ""
	}
	return string(r.Op)
}

// ReadNode reads an answer and returns the node in it, as it is taken.
func ReadNode(b []byte) *Node {
	var a answer
	if readMessage(bytes.NewReader(b), &a) != nil || a.Node == nil {
		return nil
	}
	a.Node.clean()
	return a.Node
}

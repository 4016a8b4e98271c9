package tcpstore

import (
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestLongRequestInSmallPieces takes a request of 16 MiB in pieces of 256 bytes. Copying what is there at every piece
// would be half a terabyte of copying.
func TestLongRequestInSmallPieces(t *testing.T) {
	testutil.Long(t)
	const value, piece = 8 << 20, 256
	s := &Server{}
	s.cfg.Limits = s.cfg.Limits.withDefaults()
	s.space = newSpace(s.cfg.Limits, "", &s.pool)
	s.cfg.Limits = s.space.lim
	l := &loop{srv: s}
	s.loops = []*loop{l}
	c := &conn{loop: l, from: &source{}, fd: -1, gen: int8(G2)}
	c.conn = c
	request := appendU64([]byte{byte(opMultiSet)}, 2)
	for range 2 {
		request = appendBytes(appendBytes(request, "k"), make([]byte, value))
	}
	start := time.Now()
	for at := 0; at < len(request); at += piece {
		l.take(c, request[at:min(at+piece, len(request))])
		if took := time.Since(start); took > 30*time.Second {
			t.Fatalf("%d bytes took %v", at, took)
		}
	}
	if e := s.space.workers.keys["k"]; e == nil || len(e.bytes()) != value || c.in != nil || c.closed {
		t.Errorf("stored %v, left %d bytes", e != nil, len(c.in))
	}
}

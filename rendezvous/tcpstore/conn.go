//go:build linux

package tcpstore

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"
)

// genUnknown is the generation of a connection that has not sent enough to tell.
const genUnknown Generation = -1

// Numbers of WATCH_KEY and DELETE_KEY in PyTorch 1.9-2.0; those of DELETE_KEY and APPEND in 2.1.
const (
	watchKeyG0  = 7
	deleteKeyG0 = 8
)

// conn is one client. Only its loop touches it, except for waiter, which belongs to the space. An idle one costs what
// stands here and no buffer.
type conn struct {
	waiter

	loop      *loop
	from      *source
	fd        int32
	counted   int32 // bytes of in that count as arriving
	slot      int32
	serial    int32 // tells apart the users of one slot
	gen       int8
	closed    bool
	paused    bool // too much is unsent: do not read
	hungup    bool // the peer has closed its side; read until the end
	polling   bool // registered for writability too
	again     bool // in loop.again
	hoards    bool // known to the server's hoard
	ending    bool // nothing more is read; to be closed once its replies are sent
	agent     bool // has named a key of the agents
	spoke     bool // a handshake or a whole request has come
	dismissed bool // it was silent, and is out of the counts of its address already
	asks      bool // an old client that began with a request other than WATCH_KEY and has not sent DELETE_KEY of G0

	scan scan
	in   []byte  // what has come of a request that is not whole, or of requests while paused
	fill *fill   // big value on its way; in is empty then
	out  *outbox // unsent replies, nil when there are none
}

// fill is a SET, APPEND or QUEUE_PUSH whose big value is being read into its own buffer.
type fill struct {
	op   op
	key  []byte
	blob *blob
	size int
}

// outbox is what the socket did not take yet.
type outbox struct {
	segs  []segment
	size  int
	small int       // bytes of size that are not of big values
	moved time.Time // when the socket last took something
}

type segment struct {
	b    []byte
	blob *blob // holder of b, nil for small bytes
}

// kept is what the outbox has in memory besides big values: these are there once, but one answer may name them very
// often.
func (o *outbox) kept() int { return o.small + len(o.segs)*int(unsafe.Sizeof(segment{})) }

func (c *conn) unsent() int {
	if c.out == nil {
		return 0
	}
	return c.out.size
}

// opcode decides what the request that begins b is. It returns used > 0 for a handshake, which it consumes, and
// ok == false when more bytes are needed.
func (c *conn) opcode(b []byte, old Generation, lim *Limits) (o op, used int, ok bool, err error) {
	if Generation(c.gen) == genUnknown {
		// A handshake is 00 and the magic. Without one, 00 is SET, whose key length cannot look like the magic.
		if b[0] == 0 {
			if len(b) < 5 {
				return 0, 0, false, nil
			}
			n := binary.LittleEndian.Uint32(b[1:])
			if n == magic {
				c.gen = int8(G2)
				return 0, 5, true, nil
			}
			if n > uint32(lim.Key) {
				return 0, 0, false, fmt.Errorf("%w: handshake with the wrong magic %#x", errProtocol, n)
			}
		}
		c.gen = int8(old)
		c.asks = b[0] != watchKeyG0 && b[0] != deleteKeyG0
	} else if c.asks && Generation(c.gen) == G0 {
		// PyTorch 1.9-2.0 watches keys on a connection of its own, which sends nothing else: behind a request, the
		// number is DELETE_KEY of PyTorch 2.1. The next number is DELETE_KEY of the older ones and APPEND of 2.1; what
		// was read as the one stays that.
		switch b[0] {
		case watchKeyG0:
			c.gen = int8(G1)
		case deleteKeyG0:
			c.asks = false
		}
	}
	o, ok = Generation(c.gen).lookup(b[0])
	if !ok {
		return 0, 0, false, fmt.Errorf("%w: opcode %d of %v", errProtocol, b[0], Generation(c.gen))
	}
	return o, 0, true, nil
}

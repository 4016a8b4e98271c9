//go:build linux

package tcpstore

const keepReply = 1 << 20 // bytes of a reply buffer that are worth keeping for the next reply

// reply collects what a connection gets for the requests of one read.
type reply struct {
	buf  []byte
	cuts []cut // big values, in order
	big  int   // bytes of the big values
}

// cut says that a big value goes out before buf[at:].
type cut struct {
	at   int
	b    []byte
	blob *blob
}

func (r *reply) reset() {
	if cap(r.buf) > keepReply {
		r.buf = nil
	}
	clear(r.cuts)
	r.buf, r.cuts, r.big = r.buf[:0], r.cuts[:0], 0
}

func (r *reply) size() int { return len(r.buf) + r.big }

func (r *reply) value(e *entry) {
	if e == nil {
		r.buf = appendU64(r.buf, 0)
		return
	}
	if e.big == nil {
		r.buf = appendBytes(r.buf, e.val)
		return
	}
	r.buf = appendU64(r.buf, uint64(len(e.big.b)))
	r.cuts = append(r.cuts, cut{at: len(r.buf), b: e.big.b, blob: e.big.hold()})
	r.big += len(e.big.b)
}

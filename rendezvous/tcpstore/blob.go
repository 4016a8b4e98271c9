//go:build linux

package tcpstore

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// bigValue is the length in bytes from which a value lives in a blob: it is read from its socket into the buffer that
// stores it, and written from there. Below, copying is cheaper than keeping count.
const bigValue = 16 << 10

const (
	poolBytes = 32 << 20 // free blobs that a server keeps for reuse
	firstGrab = 64 << 10 // what a value may claim before any of it has come
)

// blob is the buffer of a big value, counted by the stored entry and by every reply that still has to send it.
// Its bytes do not change while more than one holds it; what the entry appends lies beyond the length others know.
type blob struct {
	b    []byte
	refs atomic.Int32
}

func (b *blob) hold() *blob {
	b.refs.Add(1)
	return b
}

// blobPool keeps freed blobs. New memory costs a page fault and a clearing per page, more than the reading itself:
// without it a set of 1 MiB costs twice as much.
type blobPool struct {
	mu   sync.Mutex
	free map[int][]*blob // by capacity
	held int             // bytes in free
	live atomic.Int64    // bytes of blobs that somebody holds, and of requests that are arriving
}

// sizeClass rounds n up to a quarter of a power of two, so that blobs fit again at the price of a fifth of memory.
func sizeClass(n int) int {
	if n <= bigValue {
		return bigValue
	}
	step := 1 << (bits.Len(uint(n-1)) - 3)
	return (n + step - 1) &^ (step - 1)
}

// get returns a blob without content that can take at least n bytes if a used one is there, or else can take as much
// as have says is in hand, with room to grow to n: a length that was only claimed costs no memory of ours.
func (p *blobPool) get(n, have int) *blob {
	class := sizeClass(n)
	p.mu.Lock()
	if l := p.free[class]; len(l) > 0 {
		b := l[len(l)-1]
		l[len(l)-1] = nil
		p.free[class] = l[:len(l)-1]
		p.held -= class
		p.mu.Unlock()
		b.refs.Store(1)
		p.live.Add(int64(cap(b.b)))
		return b
	}
	p.mu.Unlock()
	b := &blob{b: make([]byte, 0, min(class, max(firstGrab, 4*have)))}
	b.refs.Store(1)
	p.live.Add(int64(cap(b.b)))
	return b
}

// grow gives b, which nobody else holds and is full, room for more, up to n bytes in all.
func (p *blobPool) grow(b *blob, n int) {
	bigger := make([]byte, len(b.b), min(sizeClass(n), 4*cap(b.b)))
	copy(bigger, b.b)
	p.live.Add(int64(cap(bigger) - cap(b.b)))
	b.b = bigger
}

// release gives back one hold of b.
func (p *blobPool) release(b *blob) {
	if b.refs.Add(-1) != 0 {
		return
	}
	class := cap(b.b)
	p.live.Add(int64(-class))
	if class != sizeClass(class) {
		return // appended to or abandoned half-way, and the garbage collector's
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held+class > poolBytes {
		return
	}
	if p.free == nil {
		p.free = make(map[int][]*blob)
	}
	b.b = b.b[:0]
	p.free[class] = append(p.free[class], b)
	p.held += class
}

func (p *blobPool) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free, p.held = nil, 0
}

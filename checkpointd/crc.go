package checkpointd

import (
	"hash/crc32"
	"sync"
)

// castagnoli is the polynomial of all checksums of our own. The entries of zip files have the other one.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// combiner joins the CRCs of pieces to that of the whole, so that pieces can be summed by several processors. The
// arithmetic is that of polynomials over GF(2) modulo the CRC's, in its reflected form: the highest power is bit 0.
type combiner struct {
	poly   uint32
	powers [66]uint32 // x^(2^i), up to 8 bits for each of 2^62 bytes
}

// They are made when they are first used: the start of a job need not wait for them.
var (
	ieeeCombiner       = sync.OnceValue(func() *combiner { return newCombiner(crc32.IEEE) })
	castagnoliCombiner = sync.OnceValue(func() *combiner { return newCombiner(crc32.Castagnoli) })
)

func newCombiner(poly uint32) *combiner {
	c := &combiner{poly: poly}
	c.powers[0] = 1 << 30 // x
	for i := 1; i < len(c.powers); i++ {
		c.powers[i] = c.times(c.powers[i-1], c.powers[i-1])
	}
	return c
}

func (c *combiner) times(a, b uint32) uint32 {
	var product uint32
	for bit := uint32(1) << 31; a != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			a &^= bit
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= c.poly
		}
	}
	return product
}

// join returns the CRC of a piece with the CRC first, followed by one of n bytes with the CRC second.
func (c *combiner) join(first, second uint32, n int64) uint32 {
	shift := uint32(1) << 31 // 1
	for i := 3; n > 0; i++ { // 8 bits in a byte
		if n&1 != 0 {
			shift = c.times(c.powers[i], shift)
		}
		n >>= 1
	}
	return c.times(shift, first) ^ second
}

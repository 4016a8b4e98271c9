package checkpointd

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"muster/checkpointd/planner"
)

// A copy that another node is to have is known by its digest: SHA-256 of where its list of files lies, and of the
// SHA-256 of its blocks, which several processors compute at once. The node whose worker made the copy states it to the
// node that leads, which tells those that get the copy, from whom ever; none of them has a worker read a copy with
// another one.
const digestBlock = 4 << 20

// digester sums the blocks of a copy, which may come in any order, from several goroutines.
type digester struct {
	used, metaOff, metaLen int64
	blocks                 [][sha256.Size]byte
}

func newDigester(used, metaOff, metaLen int64) *digester {
	return &digester{used, metaOff, metaLen, make([][sha256.Size]byte, (used+digestBlock-1)/digestBlock)}
}

func (d *digester) begin() hash.Hash { return sha256.New() }

// end takes the sum of the block that begins at an offset behind the header.
func (d *digester) end(at int64, sum hash.Hash) { sum.Sum(d.blocks[at/digestBlock][:0]) }

// digest is that of the copy, all of whose blocks have come.
func (d *digester) digest() (sum planner.Digest) {
	h := sha256.New()
	h.Write([]byte("muster copy 1\x00"))
	for _, n := range []int64{d.used, d.metaOff, d.metaLen} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	}
	for i := range d.blocks {
		h.Write(d.blocks[i][:])
	}
	h.Sum(sum[:0])
	return sum
}

// digestError says that a copy is not what the node that made it has stated.
type digestError struct{ came, stated planner.Digest }

func (e *digestError) Error() string {
	return fmt.Sprintf("it is not what the node whose worker saved it has: its SHA-256 is %.8s…, %.8s… was stated", e.came, e.stated)
}

// errStale says that a copy was overwritten while it was summed.
var errStale = errors.New("it was overwritten meanwhile")

// digestLocked has the digest of a copy that a worker of this node made computed, once, behind everybody's back. A save
// that overwrites it ends that.
func (s *Service) digestLocked(st *set, slot *slot) {
	of, m := st.copies[slot], st.mem[slot]
	if of.digest != nil || of.digesting || !of.made() {
		return
	}
	of.digesting = true
	m.hold()
	s.wg.Go(func() {
		defer m.release()
		d := newDigester(of.used, of.metaOff, of.metaLen)
		err := m.whole()
		for at := int64(0); at < of.used && err == nil; at += digestBlock {
			s.mu.Lock()
			if st.copies[slot] != of || s.closed {
				err = errStale
			}
			s.mu.Unlock()
			if err != nil {
				break
			}
			err = guarded(func() error {
				sum := d.begin()
				sum.Write(m.bytes[headerSize+at : headerSize+min(at+digestBlock, of.used)])
				d.end(at, sum)
				return nil
			})
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		of.digesting = false
		if err == nil && st.copies[slot] == of && !s.closed {
			sum := d.digest()
			of.digest = &sum
			s.notifyLocked()
		}
	})
}

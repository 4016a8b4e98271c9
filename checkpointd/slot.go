package checkpointd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"muster/checkpointd/planner"
)

// slotState is what a slot's memory holds. The numbers stand in its header: append only.
type slotState uint32

const (
	slotEmpty   slotState = iota
	slotWriting           // a worker copies
	slotReady             // a whole copy
	slotTorn              // a worker died while it copied, or the checksums are wrong
)

func (s slotState) String() string {
	return [...]string{"empty", "writing", "ready", "torn"}[s]
}

// The header of a slot is its first page. All numbers are little-endian.
const (
	headerSize    = 4096
	headerMagic   = "MUSTCKP1"
	headerState   = 8   // 4 bytes, written last
	headerShard   = 12  // 4 bytes
	headerShards  = 16  // 4 bytes
	headerPID     = 20  // 4 bytes: who copies, or copied
	headerStep    = 24  // 8 bytes
	headerEra     = 32  // 8 bytes
	headerMetaOff = 40  // 8 bytes, from the beginning of the file
	headerMetaLen = 48  // 8 bytes
	headerBegin   = 56  // 8 bytes: Unix time in nanoseconds
	headerEnd     = 64  // 8 bytes
	headerBlock   = 72  // 8 bytes: the size of a block with a checksum
	headerBlocks  = 80  // 4 bytes: how many there are; 0: none were summed yet
	headerAgain   = 84  // 4 bytes: how often the step was saved before in its era
	headerRunID   = 96  // 64 bytes, padded with zeros
	headerDigest  = 160 // 32 bytes: of a copy that came from another node, what the one that made it has stated; else zeros
	headerSums    = 192 // 4 bytes each: CRC-32C of the blocks behind the header
	maxBlocks     = (headerSize - headerSums) / 4
	minBlock      = 4 << 20
)

// memory is one slot's file: a header, and what a worker copied behind it. One without a name cannot be made shorter,
// so reading it cannot fault; one with a name is only touched in guarded.
type memory struct {
	file  *os.File
	path  string // its name in the directory of segments, removed with the last user; empty: none
	bytes []byte // the whole of it, mapped
	want  int64  // bytes that were asked for

	users    atomic.Int32 // that may read bytes; the last one ends the mapping
	faulting sync.WaitGroup
	stop     atomic.Bool // pages are not touched in advance any more
}

// hold keeps the mapping until release. Whoever calls it has it.
func (m *memory) hold() { m.users.Add(1) }

// newMemory makes a new file in memory one for size bytes behind the header, and has want of them touched in the
// background. path is the file's name, empty for none.
func newMemory(file *os.File, path string, size, want int64, runID string, shard, shards int) (m *memory, err error) {
	fd := int(file.Fd())
	m = &memory{file: file, path: path, want: want}
	m.hold()
	defer func() {
		if err != nil {
			m.release()
		}
	}()
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, err
	}
	size += headerSize
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, fmt.Errorf("cannot make memory of %d bytes for a checkpoint: %w", size, err)
	}
	if path == "" {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
			return nil, fmt.Errorf("cannot seal the size of a checkpoint's memory: %w", err)
		}
	}
	if err := m.mmap(size); err != nil {
		return nil, err
	}
	if err := guarded(func() error {
		copy(m.bytes, headerMagic)
		m.put32(headerShard, uint32(shard))
		m.put32(headerShards, uint32(shards))
		copy(m.bytes[headerRunID:headerRunID+64], runID)
		return nil
	}); err != nil {
		return nil, err
	}
	m.prefault(want)
	return m, nil
}

func (m *memory) mmap(size int64) (err error) {
	if m.bytes, err = unix.Mmap(int(m.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("cannot map memory of %d bytes for a checkpoint: %w", size, err)
	}
	_ = unix.Madvise(m.bytes, unix.MADV_HUGEPAGE) // where shmem_enabled allows it
	return nil
}

// whole returns errCut where the file is not as long as it was made.
func (m *memory) whole() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &st); err != nil {
		return err
	}
	if st.Size < int64(len(m.bytes)) {
		return errCut
	}
	return nil
}

// faultStep is how much is touched at once: whoever copies meanwhile waits no longer than for that.
const faultStep = 8 << 20

// prefault has pages allocated in the background, in the order in which they are going to be written. The file keeps
// its size: one that was cut short must not look whole again.
func (m *memory) prefault(want int64) {
	fd, size := int(m.file.Fd()), int64(len(m.bytes))
	m.faulting.Go(func() {
		for at := int64(0); at < min(want+headerSize, size) && !m.stop.Load(); at += faultStep {
			if unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, at, min(faultStep, size-at)) != nil {
				return // whoever writes meets the same
			}
		}
	})
}

// layout reads the list of files at [off, off+length); see readLayout.
func (m *memory) layout(off, length int64) (l layout, used int64, err error) {
	if err = m.whole(); err != nil {
		return l, 0, err
	}
	err = guarded(func() (err error) {
		l, used, err = readLayout(m.bytes, off, length)
		return err
	})
	return l, used, err
}

// grow makes sure that a file with a name has pages for want bytes behind the header, beyond those that prefault takes
// care of: whoever writes to a page that the file system has no room for is killed.
func (m *memory) grow(want int64) error {
	if err := m.whole(); err != nil {
		return err
	}
	if m.path != "" && want > m.want {
		if err := unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, headerSize+m.want, want-m.want); err != nil {
			return err
		}
	}
	m.want = max(m.want, want)
	return nil
}

// release ends what hold or newMemory began.
func (m *memory) release() {
	if m.users.Add(-1) > 0 {
		return
	}
	m.stop.Store(true)
	m.faulting.Wait()
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes)
		m.bytes = nil
	}
	if m.path != "" {
		_ = os.Remove(m.path)
	}
	_ = m.file.Close()
}

func (m *memory) put32(at int, v uint32) { binary.LittleEndian.PutUint32(m.bytes[at:], v) }
func (m *memory) put64(at int, v uint64) { binary.LittleEndian.PutUint64(m.bytes[at:], v) }

// setState publishes the state after everything else of the header. Where that is cut off nobody can use the slot, as
// it says.
func (m *memory) setState(s slotState) {
	_ = guarded(func() error {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.bytes[headerState])), uint32(s))
		return nil
	})
}

// begin marks that a worker copies.
func (m *memory) begin(at moment, pid int, nanos int64) error {
	m.setState(slotWriting)
	return guarded(func() error {
		m.put32(headerBlocks, 0)
		clear(m.bytes[headerDigest:headerSums])
		m.put64(headerStep, uint64(at.Step))
		m.put64(headerEra, at.Era)
		m.put32(headerAgain, uint32(at.Again))
		m.put32(headerPID, uint32(pid))
		m.put64(headerBegin, uint64(nanos))
		return nil
	})
}

// state notes the digest of a copy that came from another node.
func (m *memory) state(d planner.Digest) error {
	return guarded(func() error { copy(m.bytes[headerDigest:], d[:]); return nil })
}

// stated is what state has noted, nil for nothing.
func (m *memory) stated() (d *planner.Digest) {
	_ = guarded(func() error {
		if sum := planner.Digest(m.bytes[headerDigest:headerSums]); sum != (planner.Digest{}) {
			d = &sum
		}
		return nil
	})
	return d
}

// finish marks a whole copy.
func (m *memory) finish(metaOff, metaLen, nanos int64) error {
	err := guarded(func() error {
		m.put64(headerMetaOff, uint64(metaOff))
		m.put64(headerMetaLen, uint64(metaLen))
		m.put64(headerEnd, uint64(nanos))
		return nil
	})
	if err == nil {
		m.setState(slotReady)
	}
	return err
}

// blockOf is the size of a block with a checksum of its own, for n bytes.
func blockOf(n int64) int64 {
	block := int64(minBlock)
	for n > block*maxBlocks {
		block *= 2
	}
	return block
}

// sums returns the checksums of the first n bytes behind the header, by blocks. It gives up, with false, when stop says
// so, or where they cannot be read.
func (m *memory) sums(n int64, procs int, stop func() bool) ([]uint32, bool) {
	block := blockOf(n)
	count := int((n + block - 1) / block)
	sums := make([]uint32, count)
	var g errgroup.Group
	g.SetLimit(procs)
	for i := range count {
		if stop() {
			break
		}
		g.Go(func() error {
			return guarded(func() error {
				at := headerSize + int64(i)*block
				sums[i] = crc32.Checksum(m.bytes[at:min(at+block, headerSize+n)], castagnoli())
				return nil
			})
		})
	}
	return sums, g.Wait() == nil && !stop()
}

// seal writes checksums into the header. Where that is cut off verify tells.
func (m *memory) seal(n int64, sums []uint32) {
	_ = guarded(func() error {
		m.put64(headerBlock, uint64(blockOf(n)))
		for i, sum := range sums {
			m.put32(headerSums+4*i, sum)
		}
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&m.bytes[headerBlocks])), uint32(len(sums)))
		return nil
	})
}

// errChecksum is why a copy in memory or on disk is not used.
var errChecksum = errors.New("its checksum is wrong")

// verify compares the first n bytes with the checksums that they had, where they were summed.
func (m *memory) verify(n int64) error {
	if err := m.whole(); err != nil {
		return err
	}
	return guarded(func() error {
		count := atomic.LoadUint32((*uint32)(unsafe.Pointer(&m.bytes[headerBlocks])))
		if count == 0 {
			return nil
		}
		block := blockOf(n)
		if int64(count) != (n+block-1)/block || binary.LittleEndian.Uint64(m.bytes[headerBlock:]) != uint64(block) {
			return fmt.Errorf("%w: its header was overwritten", errChecksum)
		}
		sums, whole := m.sums(n, runtime.GOMAXPROCS(0), func() bool { return false })
		if !whole {
			return errCut
		}
		for i, sum := range sums {
			if binary.LittleEndian.Uint32(m.bytes[headerSums+4*i:]) != sum {
				return fmt.Errorf("%w (block %d of %d)", errChecksum, i, count)
			}
		}
		return nil
	})
}

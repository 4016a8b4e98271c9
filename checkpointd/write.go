package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	pieceSize   = 8 << 20   // of a large record: what one goroutine sums and writes at once
	smallRecord = 256 << 10 // smaller ones are gathered, with their headers, into one write
	gatherSize  = 1 << 20
	writersMax  = 8
)

// piece is one write into the file: of a run of small entries, or of a part of a large one.
type piece struct {
	first, count int   // entries
	from, to     int64 // part of the data of the entry first, where it is large
	crc, sum     uint32
}

// archiveWriter streams the records of a slot into a torch.save file. written counts bytes for whoever shows progress.
type archiveWriter struct {
	entries []zipEntry
	data    [][]byte // by entry
	pieces  []piece
	written atomic.Int64
}

// newArchiveWriter plans the file of records that lie in a slot's memory.
func newArchiveWriter(slot []byte, l layout) (*archiveWriter, int64, error) {
	w := &archiveWriter{}
	add := func(name string, data []byte) {
		w.entries = append(w.entries, zipEntry{Name: archiveName + name, Size: int64(len(data))})
		w.data = append(w.data, data)
	}
	pickled := slices.IndexFunc(l.Records, func(r record) bool { return r.Name == "data.pkl" })
	at := func(r record) []byte { return slot[r.Offset : r.Offset+r.Length : r.Offset+r.Length] }
	add("data.pkl", at(l.Records[pickled]))
	add("byteorder", []byte("little")) // Go's and Python's memory is the same here, and muster is built for such machines only
	add("version", []byte("3\n"))
	for i, r := range l.Records {
		if i != pickled {
			add(r.Name, at(r))
		}
	}
	directory, err := layoutZip(w.entries)
	if err != nil {
		return nil, 0, err
	}
	for i := 0; i < len(w.entries); {
		if size := w.entries[i].Size; size > smallRecord {
			for from := int64(0); from < size; from += pieceSize {
				w.pieces = append(w.pieces, piece{first: i, count: 1, from: from, to: min(from+pieceSize, size)})
			}
			i++
			continue
		}
		p := piece{first: i}
		for gathered := int64(0); i < len(w.entries) && w.entries[i].Size <= smallRecord && gathered < gatherSize; i++ {
			gathered += w.entries[i].Header + w.entries[i].Size
			p.count++
		}
		w.pieces = append(w.pieces, p)
	}
	return w, directory, nil
}

// archive writes l's records to f, which is new, and returns its size and CRC-32C. ctx ends it between two writes.
func (w *archiveWriter) archive(ctx context.Context, f *os.File, directory int64) (size int64, sum uint32, err error) {
	fd := int(f.Fd())
	if err := unix.Fallocate(fd, 0, 0, directory); err != nil && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return 0, 0, fmt.Errorf("cannot make a file of %d bytes: %w", directory, err)
	}
	var g errgroup.Group
	g.SetLimit(min(writersMax, 2*runtime.GOMAXPROCS(0)))
	for i := range w.pieces {
		p := &w.pieces[i]
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return w.write(f, p)
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	if sum, err = w.joinSums(f); err != nil {
		return 0, 0, err
	}
	end := zipDirectory(w.entries, directory)
	if _, err := f.WriteAt(end, directory); err != nil {
		return 0, 0, err
	}
	size = directory + int64(len(end))
	return size, castagnoliCombiner.join(sum, crc32.Checksum(end, castagnoli), int64(len(end))), nil
}

// write sums and writes one piece, and has the kernel begin with it at once: fsync then finds little left.
func (w *archiveWriter) write(f *os.File, p *piece) error {
	e := &w.entries[p.first]
	at, data := e.data()+p.from, []byte(nil)
	if e.Size > smallRecord {
		data = w.data[p.first][p.from:p.to]
		p.crc, p.sum = crc32.ChecksumIEEE(data), crc32.Checksum(data, castagnoli)
	} else {
		at = e.Offset
		for i := p.first; i < p.first+p.count; i++ {
			w.entries[i].CRC = crc32.ChecksumIEEE(w.data[i])
			data = append(append(data, w.entries[i].local()...), w.data[i]...)
		}
		p.sum = crc32.Checksum(data, castagnoli)
	}
	if _, err := f.WriteAt(data, at); err != nil {
		return err
	}
	w.written.Add(int64(len(data)))
	_ = unix.SyncFileRange(int(f.Fd()), at, int64(len(data)), unix.SYNC_FILE_RANGE_WRITE) // a hint
	p.to = max(p.to, p.from+int64(len(data)))
	return nil
}

// joinSums gives the large entries their CRCs, writes their headers, and returns the CRC-32C of all that stands before the
// directory.
func (w *archiveWriter) joinSums(f *os.File) (sum uint32, err error) {
	for i := 0; i < len(w.pieces); {
		p := &w.pieces[i]
		e := &w.entries[p.first]
		if e.Size <= smallRecord {
			sum = castagnoliCombiner.join(sum, p.sum, p.to-p.from)
			i++
			continue
		}
		first := i
		for ; i < len(w.pieces) && w.pieces[i].first == p.first; i++ {
			e.CRC = ieeeCombiner.join(e.CRC, w.pieces[i].crc, w.pieces[i].to-w.pieces[i].from)
		}
		header := e.local()
		if _, err := f.WriteAt(header, e.Offset); err != nil {
			return 0, err
		}
		sum = castagnoliCombiner.join(sum, crc32.Checksum(header, castagnoli), int64(len(header)))
		for _, p := range w.pieces[first:i] {
			sum = castagnoliCombiner.join(sum, p.sum, p.to-p.from)
		}
	}
	return sum, nil
}

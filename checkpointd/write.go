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

// fileWriter streams one file of a layout out of a slot. written counts bytes for whoever shows progress.
type fileWriter struct {
	size     int64
	entries  []zipEntry
	data     [][]byte // by entry
	archives []archiveRun
	pieces   []piece
	written  atomic.Int64
	pace     *pace
}

// archiveRun is an archive among the entries: [first, end) are its own, and its directory lies behind them, at an
// offset that is the archive's own. base is where the archive begins in the file.
type archiveRun struct {
	first, end      int
	base, directory int64
}

// newFileWriter plans a file whose parts lie in a slot's memory.
func newFileWriter(slot []byte, parts []part) (*fileWriter, error) {
	w := &fileWriter{}
	at := func(s span) []byte { return slot[s.Offset : s.Offset+s.Length : s.Offset+s.Length] }
	for _, p := range parts {
		if p.Bytes != nil {
			w.entries = append(w.entries, zipEntry{Raw: true, Size: p.Bytes.Length, Base: w.size})
			w.data = append(w.data, at(*p.Bytes))
			w.size += p.Bytes.Length
			continue
		}
		if err := w.addArchive(p.Archive, at); err != nil {
			return nil, err
		}
	}
	w.divide()
	return w, nil
}

// addArchive adds an archive as torch.save makes it of records.
func (w *fileWriter) addArchive(records []record, at func(span) []byte) error {
	run := archiveRun{first: len(w.entries), base: w.size}
	add := func(name string, data []byte) {
		w.entries = append(w.entries, zipEntry{Name: archiveName + name, Size: int64(len(data)), Base: run.base})
		w.data = append(w.data, data)
	}
	pickled := slices.IndexFunc(records, func(r record) bool { return r.Name == pickleName })
	add(pickleName, at(records[pickled].span))
	add("byteorder", []byte("little")) // Go's and Python's memory is the same here, and muster is built for such machines only
	add("version", []byte("3\n"))
	for i, r := range records {
		if i != pickled {
			add(r.Name, at(r.span))
		}
	}
	run.end = len(w.entries)
	var err error
	if run.directory, err = layoutZip(w.entries[run.first:run.end]); err != nil {
		return err
	}
	w.archives = append(w.archives, run)
	w.size += run.directory + int64(len(zipDirectory(w.entries[run.first:run.end], run.directory)))
	return nil
}

// divide makes pieces of the entries: large ones are cut, and small ones that follow each other are gathered.
func (w *fileWriter) divide() {
	runs := w.archives
	for i := 0; i < len(w.entries); {
		for len(runs) > 0 && runs[0].end <= i {
			runs = runs[1:]
		}
		end := len(w.entries) // of what may be gathered: a directory lies behind an archive's entries
		if len(runs) > 0 {
			if end = runs[0].end; i < runs[0].first {
				end = runs[0].first
			}
		}
		if size := w.entries[i].Size; size > smallRecord {
			for from := int64(0); from < size; from += pieceSize {
				w.pieces = append(w.pieces, piece{first: i, count: 1, from: from, to: min(from+pieceSize, size)})
			}
			i++
			continue
		}
		p := piece{first: i}
		for gathered := int64(0); i < end && w.entries[i].Size <= smallRecord && gathered < gatherSize; i++ {
			gathered += w.entries[i].Header + w.entries[i].Size
			p.count++
		}
		w.pieces = append(w.pieces, p)
	}
}

// write writes the file to f, which is new, and returns its size and CRC-32C. ctx ends it between two writes.
func (w *fileWriter) write(ctx context.Context, f *os.File) (size int64, sum uint32, err error) {
	if w.size > 0 {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, w.size); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return 0, 0, fmt.Errorf("cannot make a file of %d bytes: %w", w.size, err)
		}
	}
	var g errgroup.Group
	g.SetLimit(min(writersMax, 2*runtime.GOMAXPROCS(0)))
	for i := range w.pieces {
		p := &w.pieces[i]
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := w.pace.take(ctx, w.size/int64(len(w.pieces))); err != nil {
				return err
			}
			return guarded(func() error { return w.writePiece(f, p) })
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	if sum, err = w.joinSums(f); err != nil {
		return 0, 0, err
	}
	return w.size, sum, nil
}

// writePiece sums and writes one piece, and has the kernel begin with it at once: fsync then finds little left.
func (w *fileWriter) writePiece(f *os.File, p *piece) error {
	e := &w.entries[p.first]
	at, data := e.data()+p.from, []byte(nil)
	if e.Size > smallRecord {
		data = w.data[p.first][p.from:p.to]
		p.crc, p.sum = crc32.ChecksumIEEE(data), crc32.Checksum(data, castagnoli())
	} else {
		at = e.start()
		for i := p.first; i < p.first+p.count; i++ {
			w.entries[i].CRC = crc32.ChecksumIEEE(w.data[i])
			data = append(append(data, w.entries[i].local()...), w.data[i]...)
		}
		p.sum = crc32.Checksum(data, castagnoli())
	}
	if _, err := f.WriteAt(data, at); err != nil {
		return err
	}
	w.written.Add(int64(len(data)))
	_ = unix.SyncFileRange(int(f.Fd()), at, int64(len(data)), unix.SYNC_FILE_RANGE_WRITE) // a hint
	p.to = max(p.to, p.from+int64(len(data)))
	return nil
}

// joinSums gives the large entries their CRCs, writes their headers and the directories, and returns the CRC-32C of the
// file.
func (w *fileWriter) joinSums(f *os.File) (sum uint32, err error) {
	add := func(data []byte, at int64) error {
		sum = castagnoliCombiner().join(sum, crc32.Checksum(data, castagnoli()), int64(len(data)))
		_, err := f.WriteAt(data, at)
		return err
	}
	runs := w.archives
	for i := 0; i < len(w.pieces); {
		p := &w.pieces[i]
		e := &w.entries[p.first]
		if e.Size <= smallRecord {
			sum = castagnoliCombiner().join(sum, p.sum, p.to-p.from)
			i++
		} else {
			first := i
			for ; i < len(w.pieces) && w.pieces[i].first == p.first; i++ {
				e.CRC = ieeeCombiner().join(e.CRC, w.pieces[i].crc, w.pieces[i].to-w.pieces[i].from)
			}
			if !e.Raw {
				if err := add(e.local(), e.start()); err != nil {
					return 0, err
				}
			}
			for _, p := range w.pieces[first:i] {
				sum = castagnoliCombiner().join(sum, p.sum, p.to-p.from)
			}
		}
		if r := runs; len(r) > 0 && (i == len(w.pieces) || w.pieces[i].first >= r[0].end) {
			if err := add(zipDirectory(w.entries[r[0].first:r[0].end], r[0].directory), r[0].base+r[0].directory); err != nil {
				return 0, err
			}
			runs = runs[1:]
		}
	}
	return sum, nil
}

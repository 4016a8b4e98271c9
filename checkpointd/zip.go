package checkpointd

import (
	"encoding/binary"
	"fmt"
	"math"
)

// torch.save's files are zip archives whose entries are stored, not compressed: archive/data.pkl, archive/version,
// archive/byteorder, and archive/data/N for the storages (read in PyTorch 2.15.0, torch/serialization.py and
// caffe2/serialize/inline_container.cc). Its reader wants the directory that the first entry names; mapping a file
// (mmap=True) wants the bytes of storages aligned. Sizes and offsets beyond 32 bits are written as zip64, in both
// headers.
const (
	archiveName  = "archive/"
	archiveAlign = 64

	zipLocal     = 0x04034b50
	zipCentral   = 0x02014b50
	zipEnd       = 0x06054b50
	zip64End     = 0x06064b50
	zip64Locator = 0x07064b50
	zip64Extra   = 1
	padExtra     = 0x4246 // as PyTorch's own writer pads
	zipVersion   = 45
	zipDate      = 0x21 // 1 January 1980: the same state gives the same file
	max32        = math.MaxUint32
	max16        = math.MaxUint16
)

// zipEntry is one file in an archive. Offset and the header's size are settled by layoutZip, CRC is known later.
type zipEntry struct {
	Name   string
	Size   int64
	CRC    uint32
	Offset int64 // of its local header
	Header int64 // bytes of that: the data follows
	Base   int64 // where the archive begins in its file: Offset counts from there
	Raw    bool  // no entry of an archive, but bytes of the file: it has no headers
}

func (e *zipEntry) start() int64 { return e.Base + e.Offset }
func (e *zipEntry) data() int64  { return e.start() + e.Header }

// layoutZip gives entries their places and returns where the directory begins.
func layoutZip(entries []zipEntry) (int64, error) {
	at := int64(0)
	for i := range entries {
		e := &entries[i]
		if len(e.Name) > max16 {
			return 0, fmt.Errorf("a record's name has %d bytes, the limit is %d", len(e.Name), max16)
		}
		e.Offset = at
		head := int64(30 + len(e.Name) + 4) // the padding has four bytes of its own
		if e.Size >= max32 {
			head += 20
		}
		e.Header = head + (archiveAlign-(at+head)%archiveAlign)%archiveAlign
		at += e.Header + e.Size
	}
	return at, nil
}

// local is an entry's local header. Its CRC must be known.
func (e *zipEntry) local() []byte {
	if e.Raw {
		return nil
	}
	le := binary.LittleEndian
	h := make([]byte, 0, e.Header)
	h = le.AppendUint32(h, zipLocal)
	h = e.common(h, min(e.Size, max32))
	h = le.AppendUint16(h, uint16(e.Header-30-int64(len(e.Name))))
	h = append(h, e.Name...)
	if e.Size >= max32 {
		h = le.AppendUint16(h, zip64Extra)
		h = le.AppendUint16(h, 16)
		h = le.AppendUint64(h, uint64(e.Size))
		h = le.AppendUint64(h, uint64(e.Size))
	}
	pad := e.Header - int64(len(h)) - 4
	h = le.AppendUint16(h, padExtra)
	h = le.AppendUint16(h, uint16(pad))
	return append(h, make([]byte, pad)...)
}

// common are the fields from the version up to the length of the name, which both headers have.
func (e *zipEntry) common(h []byte, size int64) []byte {
	le := binary.LittleEndian
	h = le.AppendUint16(h, zipVersion)
	h = le.AppendUint16(h, 0) // flags
	h = le.AppendUint16(h, 0) // stored
	h = le.AppendUint16(h, 0) // time
	h = le.AppendUint16(h, zipDate)
	h = le.AppendUint32(h, e.CRC)
	h = le.AppendUint32(h, uint32(size))
	h = le.AppendUint32(h, uint32(size))
	return le.AppendUint16(h, uint16(len(e.Name)))
}

// zipDirectory is the end of an archive whose entries have their places and CRCs; it begins at the offset at.
func zipDirectory(entries []zipEntry, at int64) []byte {
	le := binary.LittleEndian
	var d []byte
	for i := range entries {
		e := &entries[i]
		var extra []byte
		if e.Size >= max32 {
			extra = le.AppendUint64(extra, uint64(e.Size))
			extra = le.AppendUint64(extra, uint64(e.Size))
		}
		if e.Offset >= max32 {
			extra = le.AppendUint64(extra, uint64(e.Offset))
		}
		d = le.AppendUint32(d, zipCentral)
		d = le.AppendUint16(d, zipVersion) // made by
		d = e.common(d, min(e.Size, max32))
		if len(extra) > 0 {
			d = le.AppendUint16(d, uint16(len(extra)+4))
		} else {
			d = le.AppendUint16(d, 0)
		}
		d = append(d, make([]byte, 2+2+2+4)...) // comment, disk, attributes
		d = le.AppendUint32(d, uint32(min(e.Offset, max32)))
		d = append(d, e.Name...)
		if len(extra) > 0 {
			d = le.AppendUint16(d, zip64Extra)
			d = le.AppendUint16(d, uint16(len(extra)))
			d = append(d, extra...)
		}
	}
	size, count := int64(len(d)), len(entries)
	if at >= max32 || size >= max32 || count >= max16 {
		end := at + size
		d = le.AppendUint32(d, zip64End)
		d = le.AppendUint64(d, 44) // bytes that follow
		d = le.AppendUint16(d, zipVersion)
		d = le.AppendUint16(d, zipVersion)
		d = append(d, make([]byte, 4+4)...) // disks
		d = le.AppendUint64(d, uint64(count))
		d = le.AppendUint64(d, uint64(count))
		d = le.AppendUint64(d, uint64(size))
		d = le.AppendUint64(d, uint64(at))
		d = le.AppendUint32(d, zip64Locator)
		d = le.AppendUint32(d, 0)
		d = le.AppendUint64(d, uint64(end))
		d = le.AppendUint32(d, 1)
	}
	d = le.AppendUint32(d, zipEnd)
	d = append(d, make([]byte, 2+2)...) // disks
	d = le.AppendUint16(d, uint16(min(count, max16)))
	d = le.AppendUint16(d, uint16(min(count, max16)))
	d = le.AppendUint32(d, uint32(min(size, max32)))
	d = le.AppendUint32(d, uint32(min(at, max32)))
	return le.AppendUint16(d, 0) // comment
}

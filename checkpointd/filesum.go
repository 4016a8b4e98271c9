package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// fileSum is the checksum of the first size bytes of a file. It may grow meanwhile. Holes are not read: a file may say
// that it has more bytes than anybody could read in a lifetime, and take no place on the disk.
func fileSum(ctx context.Context, f *os.File, size int64) (string, error) {
	sum, buf := uint32(0), make([]byte, 1<<20)
	for at := int64(0); at < size; {
		from, to := nextData(f, at, size)
		sum = ^castagnoliCombiner().join(^sum, 0, from-at) // zeros
		part := io.NewSectionReader(f, from, to-from)
		at = to
		for {
			n, err := part.Read(buf)
			sum = crc32.Update(sum, castagnoli(), buf[:n])
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return "", err
			}
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
	return fmt.Sprintf("%08x", sum), nil
}

// nextData returns where the next bytes that are on the disk begin and end, in bytes from the start of the file. Where
// there are none behind at, both are the end of the file, or size. Where the file system does not tell of holes, all
// bytes count as on the disk.
func nextData(f *os.File, at, size int64) (from, to int64) {
	from, err := f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // a hole up to the end
		info, err := f.Stat()
		if err != nil {
			return at, size
		}
		return max(at, min(info.Size(), size)), size
	}
	if err != nil {
		return at, size
	}
	if to, err = f.Seek(from, unix.SEEK_HOLE); err != nil || to <= from {
		to = size
	}
	return min(from, size), min(to, size)
}

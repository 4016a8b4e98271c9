package output

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tailBytes bounds what is kept, or read back from a file, to have a stream's last lines: the status file shows 50
// lines.
const tailBytes = 64 << 10

// tail keeps the last tailBytes of a stream.
type tail struct {
	mu  sync.Mutex
	buf []byte // up to 2 × tailBytes, so that old bytes are moved away seldom
	cut bool   // earlier bytes were dropped
}

func (t *tail) add(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) >= tailBytes {
		t.cut = t.cut || len(t.buf) > 0 || len(p) > tailBytes
		t.buf = append(t.buf[:0], p[len(p)-tailBytes:]...)
		return
	}
	if len(t.buf)+len(p) > 2*tailBytes {
		t.cut = true
		n := copy(t.buf, t.buf[len(t.buf)-(tailBytes-len(p)):])
		t.buf = t.buf[:n]
	}
	t.buf = append(t.buf, p...)
}

func (t *tail) lines(n int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lastLines(t.buf, t.cut, n)
}

// fileLines returns the last n lines of the file at path; none where it cannot be read, because what is asked for is a
// report about something else that went wrong.
func fileLines(path string, n int) []string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // the worker may have put a FIFO there
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	from := max(0, info.Size()-tailBytes)
	data, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return nil
	}
	return lastLines(data, from > 0, n)
}

// lastLines returns the last n lines of data, without their ends and without what a carriage return had overwritten.
// cut says that data begins somewhere in a line, which is left out if there are others.
func lastLines(data []byte, cut bool, n int) []string {
	data = bytes.TrimRight(data, "\r\n")
	if len(data) == 0 {
		return nil
	}
	var lines []string
	for len(lines) < n {
		i := bytes.LastIndexByte(data, '\n')
		if i < 0 && cut && len(lines) > 0 {
			break
		}
		line := bytes.TrimRight(data[i+1:], "\r")
		line = line[bytes.LastIndexByte(line, '\r')+1:]
		lines = append(lines, string(line))
		if i < 0 {
			break
		}
		data = data[:i]
	}
	slices.Reverse(lines)
	return lines
}

// blank reports whether nothing can be seen in lines.
func blank(lines []string) bool {
	return strings.TrimSpace(strings.Join(lines, "")) == ""
}

// Last keeps the last lines that are written to it. Its zero value has none.
type Last struct {
	kept tail
	at   atomic.Int64 // when something was written last, in ns; 0: never
}

// At is when something was written last, zero: never.
func (l *Last) At() time.Time {
	if at := l.at.Load(); at > 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Write implements io.Writer. It always takes all.
func (l *Last) Write(p []byte) (int, error) {
	l.at.Store(time.Now().UnixNano())
	l.kept.add(p)
	return len(p), nil
}

// Lines are the last n lines, without their ends.
func (l *Last) Lines(n int) []string { return l.kept.lines(n) }

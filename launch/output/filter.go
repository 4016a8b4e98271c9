package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/rs/zerolog"
)

// keptLines is a file that the lines of several workers are copied to: filtered_stdout.log or filtered_stderr.log.
type keptLines struct {
	needles [][]byte
	longest int // bytes of the longest needle
	log     zerolog.Logger

	mu    sync.Mutex
	file  *os.File
	noted bool
}

func openKeptLines(path string, needles []string, log zerolog.Logger) (*keptLines, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("cannot make the file of filtered lines: %w", err)
	}
	k := &keptLines{file: f, log: log}
	for _, needle := range needles {
		k.needles = append(k.needles, []byte(needle))
		k.longest = max(k.longest, len(needle))
	}
	return k, nil
}

func (k *keptLines) match(line []byte) bool {
	for _, needle := range k.needles {
		if bytes.Contains(line, needle) {
			return true
		}
	}
	return false
}

// write appends all parts without a line of another worker in between. An error is logged once: what else is written
// for the worker matters more than this copy.
func (k *keptLines) write(parts ...io.Reader) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := io.Copy(k.file, io.MultiReader(parts...)); err != nil && !k.noted {
		k.noted = true
		k.log.Warn().Err(err).Str("path", k.file.Name()).Msg("cannot write filtered lines, some are lost")
	}
}

func (k *keptLines) close() error { return k.file.Close() }

// lineKeeper copies the matching lines of one followed file. A line that does not fit into its buffer is searched piece
// by piece, and then copied from the file.
type lineKeeper struct {
	src    *fileSource
	to     *keptLines
	prefix []byte

	buf  []byte
	have int
	// about a line longer than buf:
	long    bool
	matched bool
	start   int64
}

func (l *lineKeeper) run() {
	l.buf = make([]byte, pumpBytes)
	defer l.src.close()
	for {
		n, err := l.src.read(l.buf[l.have:], -1)
		l.have += n
		if n > 0 {
			l.keep()
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.to.log.Warn().Err(err).Str("path", l.src.f.Name()).Msg("cannot read a worker's output back")
			}
			if l.have > 0 || l.long {
				l.endLong(l.buf[:l.have])
			}
			return
		}
	}
}

// keep handles what is in buf and leaves in it what needs more.
func (l *lineKeeper) keep() {
	data := l.buf[:l.have]
	if l.long {
		end := bytes.IndexByte(data, '\n') + 1
		if end > 0 {
			l.endLong(data[:end])
			data = data[end:]
		}
	}
	var out []byte
	for !l.long {
		end := bytes.IndexByte(data, '\n') + 1
		if end == 0 {
			break
		}
		if l.to.match(data[:end]) {
			out = append(append(out, l.prefix...), data[:end]...)
		}
		data = data[end:]
	}
	if len(out) > 0 {
		l.to.write(bytes.NewReader(out))
	}
	l.have = copy(l.buf, data)
	if l.have == len(l.buf) || l.long {
		if !l.long {
			l.long, l.start = true, l.src.off-int64(l.have)
		}
		l.matched = l.matched || l.to.match(l.buf[:l.have])
		// A needle may begin in this piece and end in the next.
		l.have = copy(l.buf, l.buf[l.have-min(l.have, max(0, l.to.longest-1)):l.have])
	}
}

// endLong ends a line, of which piece is the last, that is long or lacks its newline.
func (l *lineKeeper) endLong(piece []byte) {
	matched := l.matched || l.to.match(piece)
	// off is behind all of buf, and piece starts at buf's start.
	end := l.src.off - int64(l.have-len(piece))
	if !l.long {
		l.start = end - int64(len(piece))
	}
	if matched {
		parts := []io.Reader{bytes.NewReader(l.prefix), io.NewSectionReader(l.src.f, l.start, end-l.start)}
		if !bytes.HasSuffix(piece, []byte{'\n'}) {
			parts = append(parts, bytes.NewReader([]byte{'\n'}))
		}
		l.to.write(parts...)
	}
	l.long, l.matched = false, false
}

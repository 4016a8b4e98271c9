package hosts

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"muster/internal/printable"
)

// Output is where the launcher shows what its agents say. Lines of different nodes are not mixed: a carriage return
// ends one too, so that progress bars show at once, and the beginning of a line is shown where the rest does not come.
type Output struct {
	// Stdout and Stderr take the workers' output, Log lines of JSON from the agents' own logs.
	Stdout, Stderr, Log io.Writer

	mu      sync.Mutex
	pending map[source]*beginning
}

type source struct {
	node string
	kind kind
}

// beginning is the part of a line that has come.
type beginning struct {
	text  []byte
	timer *time.Timer
}

const (
	// beginningWait is how long the beginning of a line waits for the rest.
	beginningWait = 200 * time.Millisecond
	// longLine is shown before its end has come.
	longLine = 64 << 10
)

// logLine is a line of an agent's log as it may be shown: JSON in which nothing moves a terminal's cursor. What is no
// JSON becomes a message of that node's.
func logLine(node string, line []byte) []byte {
	text := printable.Line(string(line), len(line))
	if strings.HasPrefix(text, "{") && json.Valid([]byte(text)) {
		return []byte(text + "\n")
	}
	said, err := json.Marshal(struct {
		Level   string `json:"level"`
		Node    string `json:"agent"`
		Message string `json:"message"`
	}{"warn", printable.Line(node, len(node)), text})
	if err != nil {
		return nil // strings are always JSON
	}
	return append(said, '\n')
}

func (o *Output) output(k kind, node string, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k == kindLog {
		for line := range bytes.Lines(p) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				_, _ = o.Log.Write(logLine(node, line)) // nobody could be told
			}
		}
		return
	}
	at := source{node, k}
	b := o.pending[at]
	if b == nil {
		b = &beginning{}
		b.timer = time.AfterFunc(time.Hour, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.flushLocked(at)
		})
		if o.pending == nil {
			o.pending = map[source]*beginning{}
		}
		o.pending[at] = b
	}
	b.text = append(b.text, p...)
	whole := bytes.LastIndexAny(b.text, "\r\n") + 1
	if len(b.text)-whole > longLine {
		whole = len(b.text)
	}
	if whole > 0 {
		_, _ = o.writer(k).Write(b.text[:whole])
		b.text = append(b.text[:0], b.text[whole:]...)
	}
	if len(b.text) > 0 {
		b.timer.Reset(beginningWait)
	} else {
		b.timer.Stop()
	}
}

func (o *Output) writer(k kind) io.Writer {
	if k == kindStdout {
		return o.Stdout
	}
	return o.Stderr
}

// flushLocked shows the beginning of a line.
func (o *Output) flushLocked(at source) {
	if b := o.pending[at]; b != nil && len(b.text) > 0 {
		_, _ = o.writer(at.kind).Write(b.text)
		b.text = b.text[:0]
	}
}

// finish shows what is left of a node's output.
func (o *Output) finish(node string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range []kind{kindStdout, kindStderr} {
		at := source{node, k}
		o.flushLocked(at)
		if b := o.pending[at]; b != nil {
			b.timer.Stop()
			delete(o.pending, at)
		}
	}
}

// prefixLines copies r to w until it ends, with what prefix returns in front of each line. A carriage return ends a line
// too.
func prefixLines(w io.Writer, r io.Reader, prefix func() string) {
	buf := make([]byte, maxOutput)
	var out []byte
	fresh := true
	for {
		n, err := r.Read(buf)
		out = out[:0]
		for text := buf[:n]; len(text) > 0; {
			if fresh {
				out = append(out, prefix()...)
			}
			end := bytes.IndexAny(text, "\r\n") + 1
			fresh = end > 0
			if !fresh {
				end = len(text)
			}
			out, text = append(out, text[:end]...), text[end:]
		}
		if err != nil && !fresh {
			out = append(out, '\n') // the next line is somebody else's
		}
		if len(out) > 0 {
			if _, werr := w.Write(out); werr != nil {
				_, _ = io.Copy(io.Discard, r) // the launcher is gone: nobody waits for what nobody reads
				return
			}
		}
		if err != nil {
			return
		}
	}
}

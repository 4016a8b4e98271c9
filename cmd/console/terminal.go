package console

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"muster/internal/printable"
)

// logWriter passes whole log lines on to a writer that may be exchanged while the log is in use. On a terminal a line
// of status can stand below them, which changes.
type logWriter struct {
	terminal *os.File // nil: there is none; set before the first line

	mu     sync.Mutex
	out    io.Writer
	status string
}

func (w *logWriter) to(out io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = out
}

func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status != "" {
		w.draw("")
		defer w.draw(w.status)
	}
	return w.out.Write(line)
}

// show replaces the line of status, "" for none. It reports whether there is a terminal to show it on.
func (w *logWriter) show(status string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.terminal == nil {
		return false
	}
	if status != w.status {
		w.status = status
		w.draw(status)
	}
	return true
}

// draw replaces what stands in the terminal's last line. A text that is too long would begin another one, and stay.
func (w *logWriter) draw(text string) {
	text = printable.Line(text, len(text))
	if width, _, err := term.GetSize(int(w.terminal.Fd())); err == nil && width > 0 {
		if line := []rune(text); len(line) >= width {
			text = string(line[:width-1])
		}
	}
	_, _ = io.WriteString(w.terminal, "\r\x1b[K"+text) // nobody misses it
}

// Keys are those that are typed, and what undoes the reading; nil where there is no keyboard.
func Keys(stdin *os.File) (typed <-chan string, restore func()) {
	fd := int(stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, func() {}
	}
	keys := make(chan string)
	go func() { // it ends with the program: nothing wakes who reads a terminal
		defer close(keys)
		buf := make([]byte, 16)
		for {
			n, err := stdin.Read(buf)
			if n > 0 {
				keys <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return keys, func() { _ = term.Restore(fd, state) }
}

package testutil

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// OpenTerminal returns a pseudo-terminal of 40 columns: what is written to one end, as a program does, can be read from
// the other.
func OpenTerminal(t *testing.T) (program, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 40})
	}
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return program, screen
}

// ReadScreen collects what programs show on a terminal, until they and the test have closed their end of it.
func ReadScreen(screen *os.File) (shown *Buffer, ended <-chan struct{}) {
	shown = &Buffer{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := screen.Read(buf)
			if err != nil {
				return
			}
			_, _ = shown.Write(buf[:n])
		}
	}()
	return shown, done
}

// ScreenLines are the lines that stay on a terminal, and what stood in lines that changed.
func ScreenLines(shown string) (lines, states []string) {
	for line := range strings.SplitSeq(shown, "\r\n") {
		parts := strings.Split(line, "\r\x1b[K")
		for i, part := range parts {
			if i < len(parts)-1 {
				if part != "" {
					states = append(states, part)
				}
			} else if part != "" {
				lines = append(lines, part)
			}
		}
	}
	return lines, states
}

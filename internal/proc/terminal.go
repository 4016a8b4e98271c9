package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Terminal is a pseudo terminal between us and a process that is about to be started.
type Terminal struct {
	Ours   *os.File // what is typed goes in, and what is shown comes out
	Theirs *os.File // for Spec.Files
}

// TerminalSize is how much a terminal shows, in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// OpenTerminal opens a pseudo terminal. Settle must be called when the process has been started, or could not be.
func OpenTerminal(size TerminalSize) (*Terminal, error) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, noTerminal(err)
	}
	t := &Terminal{Ours: ours}
	err = t.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		// The kernel opens the other end itself: its name counts only where /dev/pts is that of this process.
		theirs, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		t.Theirs = os.NewFile(theirs, "terminal")
		return nil
	})
	if err == nil {
		err = t.Resize(size)
	}
	if err != nil {
		t.Settle(err)
		return nil, noTerminal(err)
	}
	return t, nil
}

func noTerminal(err error) error {
	return errhint.With(fmt.Errorf("cannot open a pseudo terminal: %w", err),
		"does that machine have /dev/ptmx? without a terminal here, as with </dev/null, none is needed there")
}

// Resize says how much the terminal shows. Who has it hears of that by SIGWINCH.
func (t *Terminal) Resize(size TerminalSize) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
}

func (t *Terminal) control(f func(fd int) error) error {
	raw, err := t.Ours.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// Settle closes the end of a process that has it by now, and ours, too, if err says that it has not been started.
func (t *Terminal) Settle(err error) {
	if t.Theirs != nil {
		_ = t.Theirs.Close()
	}
	if t.Theirs = nil; err != nil {
		_ = t.Ours.Close()
	}
}

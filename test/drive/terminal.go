package drive

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// Terminal is a pseudo terminal of a size: what is shown on it, and its other end for a program.
func Terminal(t *testing.T, width, height uint16) (shown *testutil.Buffer, ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	shown = new(testutil.Buffer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			_, _ = shown.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = theirs.Close()
		_ = ours.Close()
		<-done
	})
	return shown, ours, theirs
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
)

// terminal is a pseudo terminal of a size: what is shown on it, and its other end for a program.
func terminal(t *testing.T, width, height uint16) (shown *testutil.Buffer, ours, theirs *os.File) {
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

// TestTop watches a job in a terminal, scrolls, changes the size and ends by q; elsewhere one picture is written.
func TestTop(t *testing.T) {
	t.Parallel()
	j := start(t, nil, "run", "-n", "8", "--run-id", "topped", "--", "sh", "-c", untilStopped)
	untilRanks(t, j.runtimeDir, 8)
	steering(t, j.runtimeDir, "top").expect(t, 0, "topped (sh)  Running  up ", "8 workers on 1 node", "\n   RANK  NODE", "\n      7  ")
	steering(t, j.runtimeDir, "top", "--every", "1ms").expect(t, 2, "give at least 100ms")
	steering(t, j.runtimeDir, "top", "nowhere").expect(t, 2, "no job that runs here matches")

	shown, ours, theirs := terminal(t, 100, 8)
	cmd := exec.CommandContext(t.Context(), "muster", "top", "topped", "--every", "100ms")
	cmd.Env = append(cleanEnviron(), "XDG_RUNTIME_DIR="+j.runtimeDir, "TMPDIR="+j.runtimeDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // as a shell gives it
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(what, says string) {
		t.Helper()
		testutil.Eventually(t, 20*time.Second, what, func() bool { return strings.Contains(shown.String(), says) })
	}
	until("it is shown", "ranks 1-5 of 8")
	_, _ = ours.WriteString("\x1b[6~")
	until("it has scrolled", "ranks 4-8 of 8")
	if err := unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
		t.Fatal(err)
	}
	until("it has grown", "ranks 1-8 of 8")
	_, _ = ours.WriteString("q")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%q", err, shown.String())
	}
	until("the terminal is as it was", "\x1b[?25h\x1b[?1049l")
	steering(t, j.runtimeDir, "stop").expect(t, 0)
	j.wait()
}

package steer

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestTop watches a job in a terminal, scrolls, changes the size and ends by q; elsewhere one picture is written.
func TestTop(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "8", "--run-id", "topped", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 8)
	drive.Beside(t, j.RuntimeDir, "top").Expect(t, 0, "topped (sh)  Running  up ", "8 workers on 1 node", "\n   RANK  NODE", "\n      7  ")
	drive.Beside(t, j.RuntimeDir, "top", "--every", "1ms").Expect(t, 2, "give at least 100ms")
	drive.Beside(t, j.RuntimeDir, "top", "nowhere").Expect(t, 2, "no job that runs here matches")

	shown, ours, theirs := drive.Terminal(t, 100, 8)
	cmd := exec.CommandContext(t.Context(), "muster", "top", "topped", "--every", "100ms")
	cmd.Env = append(drive.CleanEnviron(), drive.Apart(j.RuntimeDir)...)
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
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End()
}

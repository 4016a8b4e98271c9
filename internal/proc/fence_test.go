package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestFenceHearsOfTheAgent: the guardian that comes late to the end of a lease, and finds that the agent has said more
// since, kills nobody: what it found may be the workers of the next round.
func TestFenceHearsOfTheAgent(t *testing.T) {
	for name, spoken := range map[string]bool{"the agent has spoken": true, "the agent stands still": false} {
		cmd := exec.CommandContext(t.Context(), "sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		snap, err := readSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if spoken {
			if _, err := w.WriteString("{}\n"); err != nil {
				t.Fatal(err)
			}
		}
		newBurial(guardianState{Sessions: []ident{snap.procs[cmd.Process.Pid].ident}}).fence(int(r.Fd()))
		time.Sleep(50 * time.Millisecond)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		_ = cmd.Wait()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if killed := ok && status.Signal() == syscall.SIGKILL; killed == spoken {
			t.Errorf("%s: %v", name, cmd.ProcessState)
		}
		r.Close()
		w.Close()
	}
}

package netcheck_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"muster/internal/python/netcheck"
	"muster/internal/testutil"
)

// TestCrashStatuses: a crash ends the process whatever its status is: also with one that would be a signal that ends
// none.
func TestCrashStatuses(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		testutil.Missing(t, "python3")
	}
	dir := t.TempDir()
	if _, err := netcheck.Write(dir); err != nil {
		t.Fatal(err)
	}
	const program = `import os, muster_faults
class Wire:
    def step(self, name): pass
muster_faults.Faults(Wire(), os.environ).meet("local")
`
	for status, by := range map[int]syscall.Signal{
		1: 0, 128: 0, 137: syscall.SIGKILL, 139: syscall.SIGSEGV, 147: 0, 148: 0, 149: 0, 150: 0,
		193: 0, 255: 0,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, "-c", program)
		cmd.Dir = dir
		cmd.Env = []string{fmt.Sprintf(`MUSTER_FAKE_FAULT=[{"kind":"crash","in":"check","at":"local","local_rank":0,"status":%d}]`, status)}
		err := cmd.Run()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatalf("status %d: %v", status, err)
		}
		got := exit.Sys().(syscall.WaitStatus)
		if by != 0 && got.Signal() != by || by == 0 && got.ExitStatus() != status {
			t.Errorf("status %d: %v", status, exit)
		}
	}
}

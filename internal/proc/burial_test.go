package proc

import (
	"os/exec"
	"testing"
	"time"

	"muster/internal/testutil"
)

// A process has no environment while a program is being started in it. The guardian looks again, and finds it when it
// has the job's.
func TestTheGuardianLooksAgainAtWhatBegins(t *testing.T) {
	t.Parallel()
	const marker = "MUSTER_AGENT=a-process-that-begins"
	cmd := exec.Command("/bin/sh", "-c", "read go; exec /usr/bin/env "+marker+" sleep 86400")
	cmd.Env = []string{}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	b := newBurial(guardianState{Marker: marker})
	find := func() int {
		snap, err := readSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		return len(b.find(snap))
	}
	// It is the shell, whose environment is empty, and not the fork of this process any more.
	testutil.Eventually(t, time.Minute, "a process without an environment is seen", func() bool {
		_, empty := hasEnv(cmd.Process.Pid, marker)
		return empty
	})
	if n := find(); n != 0 || !b.unsure {
		t.Errorf("%d processes found, one may begin: %v", n, b.unsure)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	// Between the two it is env, with the shell's PWD alone: who looks then need not look again.
	testutil.Eventually(t, time.Minute, "the program with the marker has begun", func() bool {
		has, _ := hasEnv(cmd.Process.Pid, marker)
		return has
	})
	if n := find(); n != 1 {
		t.Errorf("%d processes found, want the one that has begun", n)
	}
}

package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/hostaddr"
	"muster/internal/testutil"
	"muster/test/drive"
)

// The ssh session in which somebody starts a job says nothing of how its nodes reach each other.
func TestHostsHereInSession(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, []string{"SSH_CONNECTION=192.0.2.1 50000 192.0.2.9 22"}, "run", "--hosts", "localhost,127.0.0.1", "--", "sh", "-c",
		"echo master $MASTER_ADDR")
	ended := make(chan drive.Outcome, 1)
	go func() { ended <- j.End() }()
	select {
	case got := <-ended:
		if got.Status != 0 || strings.Count(got.Stdout, "master 127.0.0.1\n") != 2 {
			t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
		}
	case <-time.After(30 * time.Second):
		_ = j.Process.Kill()
		t.Fatal("the nodes do not find each other")
	}
}

// A machine that is reached by a program, and not over ssh, is known to the others by its own address: not as this one.
func TestHostsByProgramAddress(t *testing.T) {
	t.Parallel()
	own := hostaddr.Outward()
	if own == "" {
		testutil.Missing(t, "a route to anywhere")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "kubexec.sh")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nshift\nunset SSH_CONNECTION\nexec sh -c \"$*\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache")},
		"run", "--ssh-program", program, "--hosts", "pod-a,pod-b", "--", "sh", "-c", "echo master $MASTER_ADDR")
	if got.Status != 0 || strings.Count(got.Stdout, "master "+own+"\n") != 2 {
		t.Errorf("status %d, want the address %s\n%s%s", got.Status, own, got.Stdout, got.Stderr)
	}
}

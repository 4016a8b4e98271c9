package checkpoint

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/checkpointd"
	"muster/internal/testutil"
	"muster/test/drive"
)

// lingering starts a job whose two workers save steps 1 to 4 to memory, and waits until they have.
func lingering(t *testing.T, environ []string, args ...string) *drive.Job {
	t.Helper()
	python := testutil.Torch(t)
	dir := args[len(args)-1]
	args = append(append([]string{"run", "--ckpt", "on", "--warm", "auto", "-n", "2"}, args[:len(args)-1]...), "--", python, "-u",
		drive.Script(t, "torch", "flash.py"), dir)
	j := drive.Start(t, append(environ, "LINGER=4", "MARK="+dir), args...)
	testutil.Eventually(t, 2*time.Minute, "both workers are at step 4",
		func() bool { return strings.Count(j.Out.String(), "loss 4 ") == 2 })
	if steps, err := checkpointd.List(dir); err != nil || len(steps) != 0 {
		t.Fatalf("on disk already: %+v: %v", steps, err)
	}
	return j
}

func onDisk(t *testing.T, dir string, step int64) {
	t.Helper()
	steps, err := checkpointd.List(dir)
	if err != nil || len(steps) == 0 || steps[0].Step != step {
		t.Fatalf("on disk: %+v: %v", steps, err)
	}
	if got := drive.Run(t, nil, "ckpt", "verify", dir); got.Status != 0 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestAgentKilled kills a muster whose steps are in memory only: its guardian brings the newest to disk, and nothing
// stays behind.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	j := lingering(t, nil, dir)
	if err := j.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := j.End() // its output ends when the guardian does
	if !strings.Contains(got.Stderr, "checkpoint written") {
		t.Errorf("nobody was told:\n%s", got.Stderr)
	}
	onDisk(t, dir, 4)
	j.NothingLeft(dir)
}

// TestAgentKilledWithoutSalvage does not want anything to outlive muster.
func TestAgentKilledWithoutSalvage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	j := lingering(t, nil, "--ckpt-salvage", "0", dir)
	if err := j.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	j.End()
	j.NothingLeft(dir)
	if steps, err := checkpointd.List(dir); err != nil || len(steps) != 0 {
		t.Fatalf("on disk: %+v: %v", steps, err)
	}
}

// TestAllKilled kills a muster together with its guardian, twice: what it had in memory stays. One is saved by hand, and
// not where steps of somebody else are; what the other has left is where the next start with the same run id goes on.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	memory := []string{"MUSTER_CKPT_MEMORY=" + drive.MemoryDir(t)}
	saved, adopted := filepath.Join(t.TempDir(), "saved"), filepath.Join(t.TempDir(), "adopted")
	var last *drive.Job
	for id, dir := range map[string]string{"one": saved, "two": adopted} {
		last = lingering(t, memory, "--run-id", id, dir)
		if got := drive.Run(t, memory, "ckpt", "ls", dir); !strings.Contains(got.Stdout, "its job runs; only in memory") {
			t.Errorf("while it runs:\n%s%s", got.Stdout, got.Stderr)
		}
		if got := drive.Run(t, memory, "ckpt", "drop", "--run-id", id); got.Status != 1 {
			t.Errorf("dropped while it runs: status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
		}
		last.KillWithGuardian()
		testutil.Eventually(t, 20*time.Second, "every process of the job is gone", func() bool { return len(drive.Processes(t, dir)) == 0 })
	}
	got := drive.Run(t, memory, "ckpt", "ls")
	if strings.Count(got.Stdout, "its job has ended; only in memory") < 2 || !strings.Contains(got.Stdout, adopted) {
		t.Fatalf("%s%s", got.Stdout, got.Stderr)
	}
	got = drive.Run(t, memory, "run", "--ckpt", "on", "--warm", "auto", "-n", "2", "--run-id", "two", "--", testutil.Torch(t),
		"-u", drive.Script(t, "torch", "flash.py"), adopted)
	if got.Status != 0 || strings.Count(got.Stdout, "restored 4 memory") != 2 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	onDisk(t, adopted, 12)
	if got := drive.Run(t, memory, "ckpt", "save", "--to", adopted, saved); got.Status != 1 ||
		!strings.Contains(got.Stderr, "is there already") {
		t.Errorf("steps were put before those of another job: status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if got := drive.Run(t, memory, "ckpt", "save", saved); got.Status != 0 ||
		!strings.Contains(got.Stdout, "run one: step 4 is the newest in "+saved) {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	onDisk(t, saved, 4)
	if got := drive.Run(t, memory, "ckpt", "ls"); got.Stdout != "no checkpoints in memory\n" {
		t.Errorf("left in memory:\n%s%s", got.Stdout, got.Stderr)
	}
}

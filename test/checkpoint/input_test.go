package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestCheckpointDirRefused: --ckpt-dir is no directory, or cannot be one. Nothing starts.
func TestCheckpointDirRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(file+"s", "gone"), nowhere); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), nowhere, filepath.Join(nowhere, "below"), "/dev/null", ""} {
		got := drive.Run(t, nil, "run", "--ckpt-dir", dir, "--max-restarts", "2", "--no-python", "echo", "started")
		if got.Status != 2 || !strings.Contains(got.Stderr, "--ckpt-dir") || strings.Contains(got.Stdout, "started") {
			t.Errorf("%q: status %d\n%s%s", dir, got.Status, got.Stdout, got.Stderr)
		}
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "a", "b"), "../here"} {
		if got := drive.Run(t, nil, "run", "--ckpt-dir", dir, "--no-python", "echo", "started"); got.Status != 0 {
			t.Errorf("%q: status %d\n%s%s", dir, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// TestCheckpointOnFileRefused: a directory is no file that appears.
func TestCheckpointOnFileRefused(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, nil, "run", "--ckpt", "on", "--ckpt-on-file", t.TempDir(), "--no-python", "echo", "started")
	if got.Status != 2 || !strings.Contains(got.Stderr, "--ckpt-on-file") || strings.Contains(got.Stdout, "started") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestCheckpointUnreadableManifest has nothing made up about a step of which nothing is known.
func TestCheckpointUnreadableManifest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "6"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "6", "muster_manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, nil, "ckpt", "inspect", dir)
	if got.Status != 0 || !strings.Contains(got.Stdout, `"problem"`) || strings.Contains(got.Stdout, `"created"`) ||
		strings.Contains(got.Stdout, `"version"`) {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	for _, command := range []string{"inspect", "verify"} {
		if got := drive.Run(t, nil, "ckpt", command, "--step", "-7", dir); got.Status != 2 || !strings.Contains(got.Stderr, "--step") {
			t.Errorf("%s --step -7: status %d\n%s%s", command, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// TestCheckpointNoDir: a name that is missing or empty is refused, and is not the working directory.
func TestCheckpointNoDir(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"ls", ""},
		{"ls", "a", "b"},
		{"inspect"},
		{"inspect", ""},
		{"verify"},
		{"verify", ""},
		{"prune", "--keep", "1"},
		{"prune", "--keep", "1", ""},
		{"save", ""},
		{"drop", ""},
		{"drop", "--run-id", "x", ""},
		{"drop", "--run-id", "", "a"},
		{"save", "--run-id", ""},
		{"save", "--to", ""},
	} {
		got := drive.Run(t, nil, append([]string{"ckpt"}, args...)...)
		if got.Status != 2 || !strings.Contains(got.Stderr, "director") && !strings.Contains(got.Stderr, "is a variable not set?") {
			t.Errorf("%q: status %d\n%s%s", args, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// TestCheckpointUnreadableLabel: nobody can say what is in memory. It is given up by the run id that its name has.
func TestCheckpointUnreadableLabel(t *testing.T) {
	t.Parallel()
	dir := drive.MemoryDir(t)
	memory := []string{"MUSTER_CKPT_MEMORY=" + dir}
	j := lingering(t, memory, "--run-id", "torn-7", filepath.Join(t.TempDir(), "checkpoints"))
	j.KillWithGuardian()
	labels, err := filepath.Glob(filepath.Join(dir, "muster-*-torn_7-*[a-z0-9]"))
	if err != nil || len(labels) == 0 {
		t.Fatalf("nothing is left: %v", err)
	}
	for _, label := range labels {
		if filepath.Ext(label) == "" {
			if err := os.Truncate(label, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := drive.Run(t, memory, "ckpt", "ls"); !strings.Contains(got.Stdout, "torn_7") ||
		!strings.Contains(got.Stdout, "cannot read the label") {
		t.Errorf("%s%s", got.Stdout, got.Stderr)
	}
	if got := drive.Run(t, memory, "ckpt", "drop", "--run-id", "torn_7"); got.Status != 0 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestCheckpointMemoryNamed: a place for memory that is not there is not an empty one.
func TestCheckpointMemoryNamed(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, []string{"MUSTER_CKPT_MEMORY=" + filepath.Join(t.TempDir(), "nowhere")}, "ckpt", "ls")
	if got.Status != 2 || !strings.Contains(got.Stderr, "MUSTER_CKPT_MEMORY") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestTokenFileEmpty: a variable that is not set does not switch off what the token protects.
func TestTokenFileEmpty(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, nil, "run", "--nnodes", "2", "--rdzv", "c10d://127.0.0.1:1", "--run-id", "x", "--token-file", "",
		"--no-python", "true")
	if got.Status != 2 || !strings.Contains(got.Stderr, "--token-file") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestLastCheckpointNotSaved: the workers succeed, and what they saved last finds no room on disk. The job has not
// succeeded.
func TestLastCheckpointNotSaved(t *testing.T) {
	t.Parallel()
	python, dir, memory := testutil.Torch(t), t.TempDir(), drive.MemoryDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	status := filepath.Join(t.TempDir(), "status.json")
	environ := []string{"MUSTER_CKPT_MEMORY=" + memory}
	got := drive.Run(t, environ, "run", "--run-id", "full", "--ckpt-dir", dir, "--status-file", status, "--", python, "-c",
		"import torch\nfrom muster.checkpoint import *\nassert Checkpointer().save_checkpoint(7, {'w': torch.ones(1 << 20)}, "+
			"storage_type=StorageType.DISK)")
	if got.Status != 1 || !strings.Contains(got.Stderr, "the last checkpoint is not on disk") ||
		!strings.Contains(got.Stderr, "no space left") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	var doc struct {
		Phase, Reason string
		ExitStatus    int `json:"exitStatus"`
	}
	if text, err := os.ReadFile(status); err != nil || strings.Contains(string(text), "WorkersSucceeded") ||
		json.Unmarshal(text, &doc) != nil || doc.Reason != "CheckpointNotSaved" || doc.ExitStatus != 1 {
		t.Errorf("%s: %v", text, err)
	}
	elsewhere := t.TempDir()
	if got := drive.Run(t, environ, "ckpt", "save", "--run-id", "full", "--to", elsewhere); got.Status != 0 ||
		!strings.Contains(got.Stdout, "step 7 is the newest in "+elsewhere) {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	onDisk(t, elsewhere, 7)
}

// TestSaveAlone: a rank ends, and the other one goes on saving without waiting for it.
func TestSaveAlone(t *testing.T) {
	t.Parallel()
	python, dir := testutil.Torch(t), filepath.Join(t.TempDir(), "checkpoints")
	args := append(drive.Warm("torch"), "run", "-n", "2", "--ckpt-dir", dir, "--", python, "-c", `import os, time, torch
from muster.checkpoint import Checkpointer, StorageType
rank = int(os.environ["RANK"])
c = Checkpointer(shards="world")
began = time.monotonic()
for step in range(20 if rank == 0 else 8):
    time.sleep(0.1)
    c.save_checkpoint(step, {"w": torch.ones(1000)}, storage_type=StorageType.DISK if step in (5, 10) else StorageType.MEMORY)
print("rank", rank, "done", time.monotonic() - began < 30)`)
	got := drive.Run(t, nil, args...)
	if got.Status != 0 || strings.Count(got.Stdout, "done True") != 2 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestCheckpointHostile has names and sizes in a directory of checkpoints that nobody could have meant: they are told,
// in one line each that a terminal can show, at once, and nothing of them is removed.
func TestCheckpointHostile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	manifest := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manifest("1/muster_manifest.json",
		`{"version":1,"step":1,"attempt":"a","shards":1,"files":[{"path":"1/\u001b[2J\u202e","attempt":"a"}]}`)
	manifest("2/muster_manifest.json",
		`{"version":1,"step":2,"attempt":"a","shards":1,"files":[{"path":"2/x","size":-1099511627776,"attempt":"a"}]}`)
	manifest("\x1b]0;title\a/muster_manifest.json", `{"version":1,"step":-3,"shards":-1}`)
	manifest(".muster/4.json", `{"version":1,"step":4,"attempt":"a","shards":1,"files":[{"path":".","attempt":"a"}]}`)
	if err := syscall.Mkfifo(filepath.Join(dir, "dlrover_latest.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "muster_latest.json")); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]int{"ls": 0, "verify": 1, "prune --keep 1": 0, "inspect": 0} {
		got := drive.Run(t, nil, append(append([]string{"ckpt"}, strings.Fields(command)...), dir)...)
		if got.Status != want || strings.ContainsAny(got.Stdout+got.Stderr, "\x1b\a\u202e") || strings.Contains(got.Stdout, "-10485") {
			t.Errorf("%s: status %d\n%q%q", command, got.Status, got.Stdout, got.Stderr)
		}
		if command == "inspect" || command == "prune --keep 1" {
			continue
		}
		for _, part := range []string{
			"muster_latest.json", "dlrover_latest.txt", "a FIFO", "a symbolic link", `\x1b]0;title\a`,
			"1099511627776",
		} {
			if !strings.Contains(got.Stdout, part) {
				t.Errorf("%s says nothing of %q:\n%s", command, part, got.Stdout)
			}
		}
		if n := strings.Count(got.Stdout, "\n"); n != 6+map[string]int{"ls": 1}[command] {
			t.Errorf("%s: %d lines\n%s", command, n, got.Stdout)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 6 {
		t.Errorf("left: %q", names)
	}
}

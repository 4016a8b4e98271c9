package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckpointDirRefused: --ckpt-dir is no directory, or cannot be one. Nothing starts.
func TestCheckpointDirRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(file+"s", "gone"), nowhere); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), nowhere, filepath.Join(nowhere, "below"), "/dev/null", ""} {
		got := muster(t, nil, "run", "--ckpt-dir", dir, "--max-restarts", "2", "--no-python", "echo", "started")
		if got.status != 2 || !strings.Contains(got.stderr, "--ckpt-dir") || strings.Contains(got.stdout, "started") {
			t.Errorf("%q: status %d\n%s%s", dir, got.status, got.stdout, got.stderr)
		}
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "a", "b"), "../here"} {
		if got := muster(t, nil, "run", "--ckpt-dir", dir, "--no-python", "echo", "started"); got.status != 0 {
			t.Errorf("%q: status %d\n%s%s", dir, got.status, got.stdout, got.stderr)
		}
	}
}

// TestCheckpointOnFileRefused: a directory is no file that appears.
func TestCheckpointOnFileRefused(t *testing.T) {
	got := muster(t, nil, "run", "--ckpt", "on", "--ckpt-on-file", t.TempDir(), "--no-python", "echo", "started")
	if got.status != 2 || !strings.Contains(got.stderr, "--ckpt-on-file") || strings.Contains(got.stdout, "started") {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
}

// TestCheckpointUnreadableManifest has nothing made up about a step of which nothing is known.
func TestCheckpointUnreadableManifest(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "6"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "6", "muster_manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := muster(t, nil, "ckpt", "inspect", dir)
	if got.status != 0 || !strings.Contains(got.stdout, `"problem"`) || strings.Contains(got.stdout, `"created"`) || strings.Contains(got.stdout, `"version"`) {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	for _, command := range []string{"inspect", "verify"} {
		if got := muster(t, nil, "ckpt", command, "--step", "-7", dir); got.status != 2 || !strings.Contains(got.stderr, "--step") {
			t.Errorf("%s --step -7: status %d\n%s%s", command, got.status, got.stdout, got.stderr)
		}
	}
}

// TestCheckpointNoDir: a name that is missing or empty is refused, and is not the working directory.
func TestCheckpointNoDir(t *testing.T) {
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
		got := muster(t, nil, append([]string{"ckpt"}, args...)...)
		if got.status != 2 || !strings.Contains(got.stderr, "director") && !strings.Contains(got.stderr, "is a variable not set?") {
			t.Errorf("%q: status %d\n%s%s", args, got.status, got.stdout, got.stderr)
		}
	}
}

// TestCheckpointUnreadableLabel: nobody can say what is in memory. It is given up by the run id that its name has.
func TestCheckpointUnreadableLabel(t *testing.T) {
	dir := memoryDir(t)
	memory := []string{"MUSTER_CKPT_MEMORY=" + dir}
	j := lingering(t, memory, "--run-id", "torn-7", filepath.Join(t.TempDir(), "checkpoints"))
	j.killWithGuardian()
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
	if got := muster(t, memory, "ckpt", "ls"); !strings.Contains(got.stdout, "torn_7") || !strings.Contains(got.stdout, "cannot read the label") {
		t.Errorf("%s%s", got.stdout, got.stderr)
	}
	if got := muster(t, memory, "ckpt", "drop", "--run-id", "torn_7"); got.status != 0 {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

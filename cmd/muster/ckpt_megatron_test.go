package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// TestGuideMegatron runs the guide's example of Megatron under dlrover-run, and kills a rank of it.
func TestGuideMegatron(t *testing.T) {
	t.Parallel()
	modules, err := filepath.Abs("../../checkpointd/testdata")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{
		"PATH=" + testutil.Peer(t, "megatron-core") + ":" + os.Getenv("PATH"), "PYTHONPATH=" + modules,
		"PYTHONDONTWRITEBYTECODE=1",
	}
	dir := filepath.Join(t.TempDir(), "checkpoints")
	got := muster(t, env, "dlrover-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
		testScript(t, "torch", "megatron_guide.py"), dir)
	if got.status != 0 || strings.Count(got.stdout, "restored 5 500") != 2 || strings.Count(got.stdout, "done") != 2 {
		t.Fatalf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
}

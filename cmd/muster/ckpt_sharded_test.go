package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/checkpointd"
	"muster/internal/testutil"
)

// TestShardedCheckpoint kills a rank of a job with FSDP2 in the middle of training. Both ranks restore the step that was saved
// last from memory, go on exactly as a job without a crash, and leave a directory that torch alone reads.
func TestShardedCheckpoint(t *testing.T) {
	python, script, runs := testutil.Torch(t), testScript(t, "torch", "fsdp2.py"), map[string]map[string]string{}
	for _, die := range []string{"", "8"} {
		dir := filepath.Join(t.TempDir(), "checkpoints")
		got := muster(t, []string{"VICTIM=1", "DIE=" + die}, "run", "--ckpt", "on", "-n", "2", "--max-restarts", "1", "--", python, "-u", script, dir)
		if got.status != 0 {
			t.Fatalf("status %d\n%s%s", got.status, got.stdout, got.stderr)
		}
		if restored := strings.Count(got.stdout, "restored 8 memory"); die != "" && restored != 2 {
			t.Errorf("%d ranks restored step 8 from memory\n%s%s", restored, got.stdout, got.stderr)
		}
		runs[die] = losses(got.stdout)
		steps, err := checkpointd.List(dir)
		if err != nil || len(steps) == 0 || steps[0].Step != 12 || steps[0].Verify() != nil {
			t.Fatalf("the last step is not on disk: %+v: %v", steps, err)
		}
		if die == "" {
			continue
		}
		read := exec.CommandContext(t.Context(), python, "-W", "ignore", "-c", `import sys, torch
import torch.distributed.checkpoint as dcp
want = torch.load(sys.argv[1] + ".want")
got = {"model": {key: torch.zeros_like(value) for key, value in want.items()}, "step": 0}
dcp.load(got, storage_reader=dcp.FileSystemReader(sys.argv[1] + "/12"))
assert got["step"] == 12 and all(torch.equal(got["model"][key], value) for key, value in want.items())`, dir)
		if out, err := read.CombinedOutput(); err != nil {
			t.Errorf("torch without muster: %v\n%s", err, out)
		}
	}
	if diff := cmp.Diff(runs[""], runs["8"]); diff != "" || len(runs[""]) != 24 {
		t.Errorf("%d losses; they differ after a crash (-without +with):\n%s", len(runs[""]), diff)
	}
}

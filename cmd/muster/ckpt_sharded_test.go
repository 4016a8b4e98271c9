package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/checkpointd"
	"muster/internal/testutil"
)

// TestShardedCheckpoint kills a rank of a job with FSDP2 in the middle of training. Both ranks restore the step that
// was saved last from memory, go on exactly as a job without a crash, and leave a directory that torch alone reads.
func TestShardedCheckpoint(t *testing.T) {
	t.Parallel()
	python, script, runs := testutil.Torch(t), testScript(t, "torch", "fsdp2.py"), map[string]map[string]string{}
	for _, die := range []string{"", "8"} {
		dir := filepath.Join(t.TempDir(), "checkpoints")
		got := muster(t, []string{"VICTIM=1", "DIE=" + die}, "run", "--ckpt", "on", "-n", "2", "--max-restarts", "1", "--", python, "-u",
			script, dir)
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
		readSharded(t, dir, 12)
	}
	if diff := cmp.Diff(runs[""], runs["8"]); diff != "" || len(runs[""]) != 24 {
		t.Errorf("%d losses; they differ after a crash (-without +with):\n%s", len(runs[""]), diff)
	}
}

// readSharded has torch read a step's directory, without muster, and compare the model with what its ranks had in the
// end.
func readSharded(t *testing.T, dir string, step int) {
	t.Helper()
	read := exec.CommandContext(t.Context(), testutil.Torch(t), "-W", "ignore", "-c", `import os, sys, torch
import torch.distributed.checkpoint as dcp
want = torch.load(sys.argv[1] + ".want")
got = {"model": {key: torch.zeros_like(value) for key, value in want.items()}, "step": 0}
dcp.load(got, storage_reader=dcp.FileSystemReader(os.path.join(sys.argv[1], sys.argv[2])))
assert got["step"] == int(sys.argv[2]) and all(torch.equal(got["model"][key], value) for key, value in want.items())`, dir, strconv.Itoa(step))
	if out, err := read.CombinedOutput(); err != nil {
		t.Errorf("torch without muster: %v\n%s", err, out)
	}
}

// TestGuideFSDP runs the guide's example of FSDP under dlrover-run, as it is printed, and kills a rank of it.
func TestGuideFSDP(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	got := muster(t, []string{"PATH=" + filepath.Dir(testutil.Torch(t)) + ":" + os.Getenv("PATH")},
		"dlrover-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", testScript(t, "torch", "fsdp.py"), dir)
	if got.status != 0 || strings.Count(got.stdout, "restored 5 memory") != 2 {
		t.Fatalf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	readSharded(t, dir, 8)
}

package checkpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"muster/checkpointd"
	"muster/internal/testutil"
	"muster/test/drive"
)

// TestShardedCheckpoint kills a rank of a job with FSDP2 in the middle of training, when it has told the loss of a step
// that is not saved yet. Both ranks restore the step before from memory, find the same loss again, go on to the end, and
// leave a directory that torch alone reads. It runs under MUSTER_SOAK=1: TestGuideFSDP loses a rank, and checkpointd's
// TestSharded has FSDP2.
func TestShardedCheckpoint(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	got := drive.Run(t, []string{"VICTIM=1", "DIE=9"}, "run", "--ckpt", "on", "--warm", "auto,torch._dynamo", "-n", "2",
		"--max-restarts", "1", "--", testutil.Torch(t), "-u", drive.Script(t, "torch", "fsdp2.py"), dir)
	if got.Status != 0 || strings.Count(got.Stdout, "restored 8 memory") != 2 {
		t.Fatalf("status %d, or not both ranks restored step 8 from memory\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	sameLosses(t, got.Stdout, 1)
	steps, err := checkpointd.List(dir)
	if err != nil || len(steps) == 0 || steps[0].Step != 12 || steps[0].Verify() != nil {
		t.Fatalf("the last step is not on disk: %+v: %v", steps, err)
	}
	readSharded(t, dir, 12)
}

// sharedModules are what scripts of this package have imported once.
const sharedModules = "torch.distributed.checkpoint,torch.distributed.fsdp"

// plainTorch are forks of a Python that has imported torch, and knows nothing of muster.
func plainTorch(t *testing.T) *testutil.Forks {
	t.Helper()
	return testutil.ForksOf(testutil.Torch(t), sharedModules, "")
}

// readSharded has torch read a step's directory, without muster, and compare the model with what its ranks had in the
// end.
func readSharded(t *testing.T, dir string, step int) {
	t.Helper()
	read := drive.CommandOf(t, plainTorch(t), nil, "-W", "ignore", "-c", `import os, sys, torch
import torch.distributed.checkpoint as dcp
want = torch.load(sys.argv[1] + ".want")
got = {"model": {key: torch.zeros_like(value) for key, value in want.items()}, "step": 0}
dcp.load(got, storage_reader=dcp.FileSystemReader(os.path.join(sys.argv[1], sys.argv[2])))
assert got["step"] == int(sys.argv[2]) and all(torch.equal(got["model"][key], value) for key, value in want.items())`,
		dir, strconv.Itoa(step))
	if read.Status != 0 {
		t.Errorf("torch without muster: status %d\n%s", read.Status, read.Stderr)
	}
}

// TestGuideFSDP runs the guide's example of FSDP under dlrover-run, as it is printed, and kills a rank of it.
func TestGuideFSDP(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	python := drive.ForkedPythonOf(t, testutil.Torch(t), sharedModules)
	got := drive.Run(t, []string{"PATH=" + filepath.Dir(python) + ":" + os.Getenv("PATH")},
		"dlrover-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", drive.Script(t, "torch", "fsdp.py"), dir)
	if got.Status != 0 || strings.Count(got.Stdout, "restored 5 memory") != 2 {
		t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	readSharded(t, dir, 8)
}

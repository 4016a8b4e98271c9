package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestGuideMegatron runs the guide's example of Megatron under dlrover-run, and kills a rank of it. TestMegatron of checkpointd
// has the same functions.
func TestGuideMegatron(t *testing.T) {
	testutil.SoakOnly(t)
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
	got := drive.Run(t, env, "dlrover-run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
		drive.Script(t, "torch", "megatron_guide.py"), dir)
	if got.Status != 0 || strings.Count(got.Stdout, "restored 5 500") != 2 || strings.Count(got.Stdout, "done") != 2 {
		t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

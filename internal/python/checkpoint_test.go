package python

import (
	"os/exec"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// A PyTorch that is too old for checkpoints is refused by name, and not when the first step is saved.
func TestCheckpointOldTorch(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), testutil.DebianTorch(t), "-c", "import muster.checkpoint")
	cmd.Env = append(cmd.Environ(), "PYTHONPATH=checkpoint")
	out, err := cmd.CombinedOutput()
	if want := "ImportError: muster.checkpoint needs PyTorch 2.0 or newer, and this Python has 1."; err == nil ||
		!strings.Contains(string(out), want) {
		t.Errorf("%v, want %q:\n%s", err, want, out)
	}
}

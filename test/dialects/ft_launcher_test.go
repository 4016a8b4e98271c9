package dialects

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// A script with the client of NVIDIA's resiliency extension runs as it is. The worker that stays in a section is named,
// and ended; what the client calculates is taken.
func TestFTLauncher(t *testing.T) {
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "nvrx"), "python")
	config := filepath.Join(t.TempDir(), "ft.yaml")
	text := "trainer:\n  fault_tolerance:\n    initial_rank_heartbeat_timeout: 900\n    safety_factor: 100000\n" +
		"    rank_section_timeouts: {step: 600, evaluation: 5, free: null}\n    skip_section_response: false\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(drive.Warm("auto"), "ft_launcher", "--nproc-per-node", "2", "--max-restarts", "1",
		"--ft-cfg-path", config, "--log-dir", t.TempDir(), drive.Script(t, "nvrx.py"))
	got := drive.Run(t, []string{"PYTHON_EXEC=" + python}, args...)
	got.Expect(t, 0, "rank 0 has calculated", "rank 1 has calculated")
	for _, want := range []string{
		"rank 1 has not come to all_reduce: it sleeps at",
		`rank 1 is in section \"evaluation\" for`, "rank_section_timeouts: 5s", "the workers hang", "SIGKILL", "restarting the workers",
	} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("%q is not said:\n%s", want, got.Stderr)
		}
	}
}

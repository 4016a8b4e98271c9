package checkpointd

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// verified makes sure that all steps of a directory of checkpoints are whole, and returns how many there are.
func verified(t *testing.T, dir string) int {
	t.Helper()
	steps, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if err := s.Verify(); err != nil {
			t.Errorf("%s of %s: %v", s.stepDir(), dir, err)
		}
	}
	return len(steps)
}

// TestDeepSpeed keeps engines without ZeRO and with its stages: they restore from memory, and what lies on disk is what DeepSpeed itself
// writes, reads, and makes whole models of.
func TestDeepSpeed(t *testing.T) {
	bin, dir := testutil.Peer(t, "deepspeed"), t.TempDir()
	s, log := testService(t, nil)
	out := runRanksOf(t, filepath.Join(bin, "python"), nil, s.cfg.Socket, 2, filepath.Join("testdata", "engines.py"), dir, filepath.Join(t.TempDir(), "store"))
	for _, line := range []string{"zero 0", "zero 2", "zero 3", "without muster"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("not done: %s\n%s\n%s", line, out, log.String())
		}
	}
	for _, stage := range []int{0, 2, 3} {
		if n := verified(t, filepath.Join(dir, "zero"+strconv.Itoa(stage))); n != 2 {
			t.Errorf("%d steps on disk of stage %d", n, stage)
		}
	}
}

package jobs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// Accelerators that are made up for a rehearsal lie in a temporary file, which goes with muster, also where it is killed.
func TestMadeUpAcceleratorsGoWhenKilled(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../cmd/dialect/jobfile/testdata/mpijob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "mpi.yaml")
	text = []byte(strings.ReplaceAll(string(text), "$COLOR\"'", "$COLOR\"; while :; do sleep 1; done'"))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	made := func() []string {
		found, err := filepath.Glob(filepath.Join(temp, "muster-accelerators-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	j := drive.Start(t, []string{"TMPDIR=" + temp}, "run", "-f", file)
	testutil.Eventually(t, 2*time.Minute, "four workers run", func() bool { return strings.Count(j.Out.String(), "worker ") == 4 })
	if len(made()) != 1 {
		t.Errorf("accelerators are made up in %q", made())
	}
	j.Signal(syscall.SIGKILL)
	j.End()
	testutil.Eventually(t, 2*time.Minute, "nothing is left", func() bool { return len(made()) == 0 })
}

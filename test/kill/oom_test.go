package kill

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestOutOfMemoryIsNamed lets the kernel kill a worker in a memory cgroup of its own, and expects the summary to say
// so.
func TestOutOfMemoryIsNamed(t *testing.T) {
	t.Parallel()
	// Much more than muster and its guardian take, under the race detector too: the kernel kills the largest.
	group := memoryCgroup(t, 320<<20)
	// The shell moves itself and starts muster there, so that the count is that of muster's own cgroup.
	script := fmt.Sprintf(`echo $$ > %s/cgroup.procs && exec muster run -n 2 -- python3 -c '
import os, time
if os.environ["RANK"] == "1":
    data = bytearray(900 << 20)
    for i in range(0, len(data), 4096):
        data[i] = 1
time.sleep(60)'`, group)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(drive.CleanEnviron(), drive.AsText, "XDG_RUNTIME_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if status := cmd.ProcessState.ExitCode(); status != 137 {
		t.Errorf("%v, want status 137", err)
	}
	for _, want := range []string{"rank      : 1", "SIGKILL", "want of memory", filepath.Base(group), "hint"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the summary lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// memoryCgroup makes a cgroup, version 1 or 2, that allows limit bytes.
func memoryCgroup(t *testing.T, limit int) string {
	t.Helper()
	for _, c := range []struct{ parent, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	} {
		group := filepath.Join(c.parent, fmt.Sprintf("muster-test-%d", os.Getpid()))
		if err := os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) })
		if os.WriteFile(filepath.Join(group, c.file), fmt.Append(nil, limit), 0o600) == nil {
			return group
		}
	}
	testutil.Missing(t, "a memory cgroup that may be made")
	return ""
}

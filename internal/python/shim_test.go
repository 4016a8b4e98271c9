package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that imports dlrover gets muster's or the installed one, as the shim says.
func TestShim(t *testing.T) {
	installed, none := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(installed, "dlrover"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(installed, "dlrover", "__init__.py"), []byte("whose = 'theirs'"), 0o600); err != nil {
		t.Fatal(err)
	}
	// site-packages come behind PYTHONPATH.
	const program = `
import sys
sys.path.append(sys.argv[1])
try:
    import dlrover
except ImportError:
    print("none")
else:
    print(getattr(dlrover, "whose", "ours"))
import muster
`
	for _, try := range []struct {
		shim Shim
		path string
		want string
	}{
		{ShimAuto, none, "ours"},
		{ShimAuto, installed, "theirs"},
		{ShimAlways, none, "ours"},
		{ShimAlways, installed, "ours"},
		{ShimNever, none, "none"},
		{ShimNever, installed, "theirs"},
	} {
		dir := filepath.Join(t.TempDir(), "python")
		if err := InstallCheckpoint(dir); err != nil {
			t.Fatal(err)
		}
		if err := try.shim.Settle(dir); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "python3", "-S", "-c", program, try.path)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != try.want {
			t.Errorf("shim %q, installed %v: %q, want %q: %v", try.shim, try.path == installed, got, try.want, err)
		}
	}
}

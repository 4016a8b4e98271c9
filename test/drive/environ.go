package drive

import (
	"os"
	"slices"
	"strings"
	"testing"

	"muster/cmd/console"
	"muster/internal/testutil"
)

// MemoryDir makes a directory in memory that is removed with the test.
func MemoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "test-") //nolint:usetesting // temporary files lie elsewhere than memory
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// soakVariable is "1" for the scripts that run under MUSTER_SOAK=1, and "0" for others: muster keeps variables of its own
// name from workers.
const soakVariable = "TESTS_SOAK"

// Standins is the folder of modules that stand for some that no template of warm starts can share, for PYTHONPATH. With
// MUSTER_SOAK=1 it is empty, and programs have the real ones.
func Standins(t testing.TB) string {
	t.Helper()
	if testutil.Soak() {
		return ""
	}
	return Script(t, "standins")
}

// CleanEnviron is our environment without what would change a launcher's mind, with our log as JSON.
func CleanEnviron() []string {
	sources()
	out := []string{console.FormatVariable + "=json", soakVariable + "=0"} // JSON is exact, and by node: what most tests look for
	if testutil.Soak() {
		out[1] = soakVariable + "=1"
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "MUSTER_") || strings.HasPrefix(name, "PET_") || strings.HasPrefix(name, "TORCHELASTIC_") ||
			name == "OMP_NUM_THREADS" {
			continue
		}
		out = append(out, kv)
	}
	return out
}

// PeerEnviron is CleanEnviron for other programs than ours, whose workers show what they are given.
func PeerEnviron() []string {
	return slices.DeleteFunc(CleanEnviron(), func(kv string) bool { return strings.HasPrefix(kv, console.FormatVariable+"=") })
}

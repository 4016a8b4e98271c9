// Package testutil holds what several packages' tests share: waiting for a condition, and finding the real programs
// that muster is tested against. Only tests import it.
package testutil

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TorchVersion is the PyTorch release the tests and the demo run against; the Makefile installs it.
const TorchVersion = "2.15.0"

// Patience multiplies the deadlines of Eventually. They were chosen on a machine with nothing to do; a wait that ends
// well costs no more under a longer one.
const Patience = 4

// Eventually calls cond until it returns true, and fails the test with what after some times the deadline: every few
// milliseconds at first, then less often, and for at most a third of the time, since a cond that starts a
// program would keep a processor from what it waits for. Give deadlines in many seconds: they bound a hang, they do not
// measure.
func Eventually(t testing.TB, deadline time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline *= Patience
	end := time.Now().Add(deadline)
	for pause := 5 * time.Millisecond; ; pause = min(pause*5/4, 50*time.Millisecond) {
		asked := time.Now()
		if cond() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
		time.Sleep(max(pause, min(2*time.Since(asked), time.Second/4))) // nothing is assumed to have happened by then
	}
}

// Missing skips the test because something real that it needs is not on this machine, and fails it instead where
// MUSTER_TEST_REQUIRE=1 says that everything must be there.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("MUSTER_TEST_REQUIRE") == "1" {
		t.Fatalf("%s is missing, and MUSTER_TEST_REQUIRE=1 (run: make deps)", what)
	}
	t.Skipf("%s is missing (run: make deps)", what)
}

// CacheDir returns the folder outside the tree where make deps keeps virtual environments.
func CacheDir() string {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "muster-dev")
}

// Long skips a test that takes seconds where only the short ones were asked for (make short).
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a long test")
	}
}

// Few is an eighth of n, and at least one, where only the short tests were asked for: so many random worlds, or moments.
func Few(n int) int {
	if testing.Short() {
		return max(n/8, 1)
	}
	return n
}

// Soak says whether everything is to run that takes more time than make test has.
func Soak() bool { return os.Getenv("MUSTER_SOAK") == "1" }

// Count is how many random worlds, cases or moments a test has: full under make soak, else few, or an eighth of them for the
// short tests.
func Count(few, full int) int {
	if Soak() {
		return full
	}
	return Few(few)
}

// SoakOnly skips a test that takes more time than make test has.
func SoakOnly(t testing.TB) {
	t.Helper()
	if !Soak() {
		t.Skip("MUSTER_SOAK=1 runs it, as make soak does")
	}
}

// Torch returns a Python interpreter that imports torch TorchVersion from PyPI.
func Torch(t testing.TB) string {
	t.Helper()
	Long(t)
	python := filepath.Join(CacheDir(), "torch-"+TorchVersion, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		Missing(t, "PyTorch "+TorchVersion)
	}
	return python
}

// Torchrun returns the path of the real torchrun of Torch.
func Torchrun(t testing.TB) string {
	t.Helper()
	return filepath.Join(filepath.Dir(Torch(t)), "torchrun")
}

// Peer returns the bin folder of the environment with a launcher that muster replaces, a framework whose checkpoints it
// keeps, or one of an example: accelerate (with which transformers' Trainer runs), colossalai, deepspeed, dlrover,
// horovod, jax, lightning, megatron-core or spark; or the installers uv and pipx. scripts/peers has their versions.
func Peer(t testing.TB, name string) string {
	t.Helper()
	Long(t)
	found, err := filepath.Glob(filepath.Join(CacheDir(), name+"-*", ".complete"))
	if err != nil || len(found) != 1 {
		Missing(t, name)
	}
	return filepath.Join(filepath.Dir(found[0]), "bin")
}

// PeerPackages returns the folder where the packages of a peer lie. They come on top of Torch's, so that Forks.With may import
// them.
func PeerPackages(t testing.TB, name string) string {
	t.Helper()
	site, err := filepath.Glob(filepath.Join(filepath.Dir(Peer(t, name)), "lib", "python*", "site-packages"))
	if err != nil || len(site) != 1 {
		t.Fatal(site, err)
	}
	return site[0]
}

var debian = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c",
		"from importlib.metadata import version; print(version('torch'))").Output() // an import takes a second of processor time
	return strings.TrimSpace(string(out)), err
})

// DebianTorch returns /usr/bin/python3 where it imports the 1.x torch of Debian's python3-torch: the oldest protocol, and
// half the time for the import.
func DebianTorch(t testing.TB) string {
	t.Helper()
	Long(t)
	if v, err := debian(); err != nil || !strings.HasPrefix(v, "1.") {
		Missing(t, "Debian's python3-torch 1.x")
	}
	return "/usr/bin/python3"
}

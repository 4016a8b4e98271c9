package acceltest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/accel/rehearsal"
)

// Fake loads a spec whose defaults have these lines.
func Fake(t testing.TB, lines ...string) *rehearsal.Fake {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ndefaults:\n  "+strings.Join(lines, "\n  ")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(file, "")
	if err != nil {
		t.Fatal(err)
	}
	return fake
}

// FakeOf is a node with four devices of a vendor.
func FakeOf(t testing.TB, vendor string, lines ...string) *rehearsal.Fake {
	t.Helper()
	return Fake(t, append([]string{"vendor: " + vendor, "count: 4", "numa: [0, 0, 1, 1]"}, lines...)...)
}

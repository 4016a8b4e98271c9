package rehearsal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel/rehearsal"
)

// TestFakeLinks reads what a spec says of links, and what its faults make of them.
func TestFakeLinks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	text := `version: 1
defaults:
  vendor: nvidia
  count: 8
  links:
    - {pairs: all, mbps: 20000, host_mbps: 5000}
    - {pair: "2:4", mbps: 3000}
    - {from: 4, to: 2, mbps: 9000}
  faults:
    - {kind: pair-hang, pair: "0:1"}
    - {kind: pair-corrupt, pair: "3:5"}
    - {kind: pair-error, pair: "6:7", text: gone}
    - {kind: pair-error, pair: "0:7", value: 0}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fake, err := rehearsal.LoadFake(file, "any")
	if err != nil {
		t.Fatal(err)
	}
	want := []rehearsal.FakeLink{
		{All: true, MBps: 20000, HostMBps: 5000},
		{A: 2, B: 4, MBps: 3000},
		{A: 4, B: 2, OneWay: true, MBps: 9000},
		{A: 0, B: 1, Hang: true},
		{A: 3, B: 5, Corrupt: true},
		{A: 6, B: 7, Error: "gone"},
	}
	if diff := cmp.Diff(want, fake.Links()); diff != "" || fake.Count() != 8 {
		t.Errorf("%d GPUs, links (-want +got):\n%s", fake.Count(), diff)
	}
}

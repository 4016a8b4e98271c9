package launch

import (
	"strings"
	"testing"

	"muster/internal/errhint"
)

// TestStays: so many nodes stay, the host of the store among them.
func TestStays(t *testing.T) {
	t.Parallel()
	for most := 2; most <= 5; most++ {
		for both := range 36 {
			n, host, lead := 0, both/6-1, both%6-1
			for rank := range 5 {
				if stays(rank, host, lead, most) {
					n++
				} else if rank == host || rank == lead {
					t.Errorf("%d of 5: rank %d of host %d and coordinator %d leaves", most, rank, host, lead)
				}
			}
			if n != most {
				t.Errorf("%d of 5 with host %d and coordinator %d: %d stay", most, host, lead, n)
			}
		}
	}
}

func TestWhichNode(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "b", "1"}
	for name, want := range map[string]int{"a": 0, "2": 2, "1": 3, "b": -1, "4": -1, "-1": -1, "": -1} {
		got, err := whichNode(name, names)
		if want < 0 && err == nil || want >= 0 && (got != want || err != nil) {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
	if _, err := whichNode("mnist-worker-1", names); !strings.Contains(errhint.Of(err), "as muster explain lists them") {
		t.Errorf("who names a replica is told: %v; %s", err, errhint.Of(err))
	}
}

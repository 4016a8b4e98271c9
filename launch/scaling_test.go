package launch

import "testing"

// TestStays: so many nodes stay, the host of the store among them.
func TestStays(t *testing.T) {
	t.Parallel()
	for most := 1; most <= 5; most++ {
		for host := -1; host < 5; host++ {
			n := 0
			for rank := range 5 {
				if stays(rank, host, most) {
					n++
				} else if rank == host {
					t.Errorf("%d of 5: the host with rank %d leaves", most, host)
				}
			}
			if n != most {
				t.Errorf("%d of 5 with host %d: %d stay", most, host, n)
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
}

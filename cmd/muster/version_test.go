package main

import "testing"

func TestCompareVersions(t *testing.T) {
	rising := []string{
		"v0.0.0-9-gaaaaaaa", "v0.0.0-10-gbbbbbbb", "v0.1.0-alpha", "v0.1.0-alpha.1", "v0.1.0-rc.1", "v0.1.0-rc.1-2-gccccccc", "v0.1.0",
		"v0.1.0-3-gddddddd-dirty", "v0.1.1", "0.10.0", "v1.0.0",
	}
	for i, a := range rising {
		for j, b := range rising {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := compareVersions(a, b); got != want {
				t.Errorf("compareVersions(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
	for _, unknown := range []string{"devel", "devel-0123456789ab", "5906997", "", "1.2", "1.2.x"} {
		if got := compareVersions(unknown, "1.0.0"); got != 0 {
			t.Errorf("compareVersions(%q, 1.0.0) = %d, want 0", unknown, got)
		}
	}
	if got := compareVersions("v1.0.0+a", "1.0.0+b"); got != 0 {
		t.Errorf("what stands behind a plus orders: %d", got)
	}
}

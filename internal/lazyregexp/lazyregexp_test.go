package lazyregexp

import "testing"

func TestNew(t *testing.T) {
	re := New(`^a(b+)$`)
	if got := re().FindStringSubmatch("abb"); len(got) != 2 || got[1] != "bb" {
		t.Error(got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a pattern that does not compile is found in no test")
		}
	}()
	New(`(`)
}

package netcheck_test

import (
	"os"
	"runtime"
	"testing"
)

// TestMain runs all on one processor, for the reason that stands in rendezvous/membership: the race detector and
// bubbles.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

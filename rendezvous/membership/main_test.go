package membership_test

import (
	"os"
	"runtime"
	"testing"
)

// TestMain runs all on one processor: in Go 1.26.8 the timers of a synctest bubble share what the race detector knows
// of them without a lock (runtime.(*timer).unlockAndRun), and it crashes, once in some hundred runs, when two
// goroutines meet due timers at the same moment. Who happens before whom the detector tells all the same.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

//go:build testclock

package here

import (
	"os"
	"time"
)

// clockOffset is what MUSTER_TEST_CLOCK_OFFSET says, a length of time: the clock of one network namespace alone cannot
// be set.
func clockOffset() time.Duration {
	d, err := time.ParseDuration(os.Getenv("MUSTER_TEST_CLOCK_OFFSET"))
	if err != nil {
		return 0
	}
	return d
}

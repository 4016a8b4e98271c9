//go:build !testclock

package here

import "time"

// clockOffset is how far this node's clock is off. Only builds for tests can say anything but 0.
func clockOffset() time.Duration { return 0 }

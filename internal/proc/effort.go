package proc

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Effort calls f and returns the processor time that it took, in its goroutine: how often something may be done follows
// from that, as the clock would also count the wait for a processor that others use.
func Effort(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	f()
	return threadTime() - began
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0 // no kernel that Go runs on lacks the clock
	}
	return time.Duration(t.Nano())
}

package sshexec

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A machine that does not answer is said to be silent for as long as it was asked: the kernel may give up before we do,
// and so may who waits for us.
func TestSilentForHowLong(t *testing.T) {
	t.Parallel()
	s := &settings{name: "a", hostname: "a", timeout: 10 * time.Second}
	for took, want := range map[time.Duration]string{
		4120 * time.Millisecond: "no answer within 4.1s", 10*time.Second + 30*time.Millisecond: "no answer within 10s",
		time.Microsecond: "no answer within 100ms",
	} {
		for _, err := range []error{os.ErrDeadlineExceeded, syscall.ETIMEDOUT} {
			err := s.dialFailed(t.Context(), err, took)
			if e, ok := errors.AsType[*Error](err); !ok || e.Reason != TimedOut || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v", took, err)
			}
		}
	}
}

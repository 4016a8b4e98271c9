package proc

import (
	"testing"
	"time"
)

// The processor time of what is done counts, and what it waits does not.
func TestEffort(t *testing.T) {
	t.Parallel()
	const waits, works = 200 * time.Millisecond, 20 * time.Millisecond
	began := time.Now()
	took := Effort(func() {
		time.Sleep(waits) // the wait is the subject
		end := threadTime() + works
		for threadTime() < end {
			continue
		}
	})
	if took < works || took > time.Since(began)-waits+works {
		t.Errorf("%v, want %v", took, works)
	}
}

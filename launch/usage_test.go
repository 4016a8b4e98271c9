package launch

import (
	"os"
	"testing"
	"time"

	"muster/internal/proc"
)

// TestUsageSame tells what is news of a worker's use of the machine from what is not.
func TestUsageSame(t *testing.T) {
	t.Parallel()
	at := time.Now()
	before := Usage{PID: 7, Usage: proc.Usage{CPU: time.Second, Resident: 10 << 20}, Output: at, At: at}
	for name, c := range map[string]struct {
		change func(*Usage)
		same   bool
	}{
		"only the time":   {func(u *Usage) { u.At = at.Add(usageEvery) }, true},
		"a tick":          {func(u *Usage) { u.CPU += usageCPU / 5 }, true},
		"a page":          {func(u *Usage) { u.Resident -= 4096 }, true},
		"CPU":             {func(u *Usage) { u.CPU += usageCPU }, false},
		"more memory":     {func(u *Usage) { u.Resident += usageMemory }, false},
		"less memory":     {func(u *Usage) { u.Resident -= usageMemory }, false},
		"output":          {func(u *Usage) { u.Output = at.Add(time.Second) }, false},
		"another process": {func(u *Usage) { u.PID = 8 }, false},
	} {
		now := before
		if c.change(&now); now.same(&before) != c.same {
			t.Errorf("%s: same is %v", name, !c.same)
		}
	}
}

// TestUsageAsked: who asks again at once gets what was read before, and a process that was not there then is read.
func TestUsageAsked(t *testing.T) {
	t.Parallel()
	var a askedUsage
	first := time.Now()
	for _, c := range []struct {
		after time.Duration
		pid   int
		read  bool
	}{
		{0, os.Getpid(), true},
		{usageKept - 1, os.Getpid(), false},
		{usageKept - 1, os.Getppid(), true},
		{2 * usageKept, os.Getppid(), true},
	} {
		now := first.Add(c.after)
		used, at, err := a.of([]int{c.pid}, now)
		if _, is := used[c.pid]; err != nil || !is || at.Equal(now) != c.read {
			t.Errorf("%v: read at %v, is %v, %v", c, at.Sub(first), is, err)
		}
	}
}

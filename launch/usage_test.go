package launch

import (
	"testing"
	"time"
)

// TestUsageSame tells what is news of a worker's use of the machine from what is not.
func TestUsageSame(t *testing.T) {
	t.Parallel()
	at := time.Now()
	before := usage{pid: 7, cpu: time.Second, resident: 10 << 20, output: at, at: at}
	for name, c := range map[string]struct {
		change func(*usage)
		same   bool
	}{
		"only the time":   {func(u *usage) { u.at = at.Add(usageEvery) }, true},
		"a tick":          {func(u *usage) { u.cpu += usageCPU / 5 }, true},
		"a page":          {func(u *usage) { u.resident -= 4096 }, true},
		"CPU":             {func(u *usage) { u.cpu += usageCPU }, false},
		"more memory":     {func(u *usage) { u.resident += usageMemory }, false},
		"less memory":     {func(u *usage) { u.resident -= usageMemory }, false},
		"output":          {func(u *usage) { u.output = at.Add(time.Second) }, false},
		"another process": {func(u *usage) { u.pid = 8 }, false},
	} {
		now := before
		if c.change(&now); now.same(&before) != c.same {
			t.Errorf("%s: same is %v", name, !c.same)
		}
	}
}

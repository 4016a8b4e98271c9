package hosts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestHostsKilled kills the launcher at a random moment of its life: while it reaches the hosts, while they prepare,
// while workers run that hear no signal. Nothing may be left on any host soon after. With MUSTER_SOAK=1 that is 100
// times, and soon is 5 seconds.
func TestHostsKilled(t *testing.T) {
	t.Parallel()
	runs, soon := 3, time.Minute
	if testutil.Soak() {
		runs, soon = 100, 5*time.Second
	}
	j := drive.NewHostsJob(t, 2)
	args := []string{
		"run", "--hosts", j.Names(), "-n", "2", "--log-level", "debug", "--", "sh", "-c",
		`trap '' TERM INT HUP; setsid sleep 1000 & ` + drive.ShowRank + `while :; do sleep 0.1; done`,
	}
	j.Ends(j.Start("run", "--hosts", j.Names(), "--", "true"), 0) // brings our program
	// How long a start takes here says which moments there are.
	r := j.Start(args...)
	testutil.Eventually(t, time.Minute, "workers run", func() bool { return len(j.Workers()) == 4 })
	whole := time.Since(r.Began)
	_ = r.Process.Kill()
	j.Clean(soon)
	j.Forget()
	phases := []string{"reach", "prepare", "run"}
	took := map[string][]time.Duration{}
	for i := range runs {
		r := j.Start(args...)
		delay := time.Duration(rand.Int64N(int64(whole * 5 / 4)))
		if runs == 3 { // one of each
			delay = whole * time.Duration(i) / 2
		}
		select {
		case <-time.After(delay):
		case <-r.Ended():
			t.Fatalf("the launcher has ended by itself, with %d", r.Status())
		}
		_ = r.Process.Kill()
		killed := time.Now()
		<-r.Ended()
		phase := "reach"
		switch {
		case len(j.Workers()) > 0:
			phase = "run"
		case strings.Count(r.Err.String(), "node reached") == 2:
			phase = "prepare"
		}
		j.Clean(soon)
		took[phase] = append(took[phase], time.Since(killed))
		if t.Failed() {
			t.Fatalf("run %d: killed %v after its start, in %s", i, delay, phase)
		}
		j.Forget()
		j.Runs = j.Runs[:0]
	}
	var table strings.Builder
	for _, phase := range phases {
		all := took[phase]
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		fmt.Fprintf(&table, "%-8s %3d times: nothing left after %v, at most %v\n", phase, len(all),
			all[len(all)/2].Round(10*time.Millisecond), all[len(all)-1].Round(10*time.Millisecond))
	}
	t.Logf("a start takes %v; the launcher was killed\n%s", whole.Round(10*time.Millisecond), &table)
}

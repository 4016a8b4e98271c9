package devicecheck_test

import (
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

// BenchmarkCheck is what the processes take of a network check: four nodes of one device each on this machine, from
// nothing to the end of two rounds of pairs.
func BenchmarkCheck(b *testing.B) {
	python := testutil.Torch(b)
	var opened, local, rounds, closed time.Duration
	for b.Loop() {
		begin := time.Now()
		lap := func(total *time.Duration) {
			*total += time.Since(begin)
			begin = time.Now()
		}
		nodes := make([]*node, 4)
		for i := range nodes {
			nodes[i] = open(b, devicecheck.Config{Python: []string{python}, Devices: 1})
		}
		lap(&opened)
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() {
				if _, err := n.Local(b.Context()); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		lap(&local)
		for _, round := range [][2][2]int{{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}} {
			for _, p := range round {
				wg.Go(func() { healthy(b, "bench", nodes[p[0]], nodes[p[1]]) })
			}
			wg.Wait()
		}
		lap(&rounds)
		for _, n := range nodes {
			wg.Go(func() { _ = n.Close() })
		}
		wg.Wait()
		lap(&closed)
	}
	n := float64(b.N) * 1e3
	b.ReportMetric(float64(opened.Microseconds())/n, "open-ms")
	b.ReportMetric(float64(local.Microseconds())/n, "import+local-ms")
	b.ReportMetric(float64(rounds.Microseconds())/n, "pairs-ms")
	b.ReportMetric(float64(closed.Microseconds())/n, "close-ms")
}

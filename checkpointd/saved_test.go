package checkpointd

import (
	"slices"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestSaved: the node that leads is told of steps that all ranks have saved, and of the newest where many come at once.
func TestSaved(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told := map[string][]int64{}
	c := newNodesUnderTest(t, 2, func(cfg *Config) {
		node := cfg.Node
		cfg.Saved = func(step int64, _ string, at time.Time) {
			mu.Lock()
			defer mu.Unlock()
			told[node] = append(told[node], step)
			if time.Since(at) > time.Minute || at.IsZero() {
				t.Errorf("step %d was saved at %v", step, at)
			}
		}
	})
	until := func(node string, step int64) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "the node that leads is told", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(told[node], step)
		})
	}
	c.begin(0, 1)
	c.save(1, false)
	until("node0", 1)
	c.workers[0].save(2, 0, size, false)
	time.Sleep(2 * savedApart) // the other rank has yet to save it
	mu.Lock()
	if slices.Contains(told["node0"], 2) {
		t.Error("it is told of a step that one rank has saved")
	}
	mu.Unlock()
	c.workers[1].save(2, 1, size, false)
	until("node0", 2)
	for step := range int64(20) {
		c.save(10+step, false)
	}
	until("node0", 29)
	c.begin(1, 0) // another node leads
	c.save(40, false)
	until("node1", 40)
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(told["node0"], 40) || len(told["node1"]) != 1 || !slices.IsSorted(told["node0"]) {
		t.Errorf("%v", told)
	}
}

package checkpointd

import (
	"strings"
	"testing"
	"time"
)

// A rank that has ended does not keep the others waiting: they go on saving, and overwrite what it has no part of.
func TestSavesWithoutOthers(t *testing.T) {
	s, _ := testService(t, nil)
	dir := t.TempDir()
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	for step := int64(1); step <= 3; step++ {
		a.save(step, 0, size, false)
		b.save(step, 1, size, step == 2)
	}
	b.close()
	for step := int64(4); step <= 9; step++ {
		a.save(step, 0, size, step == 6)
	}
	a.close()
	s.RoundOver("a test")
	a, b = dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.want(a.load(0, size), fromMemory, 3)
	b.want(b.load(1, size), fromMemory, 3)
	b.close() // before it has saved anything
	for step := int64(4); step <= 9; step++ {
		a.save(step, 0, size, step == 6)
	}
}

// The same on several nodes.
func TestNodesSavesWithoutOthers(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.load(fromNone, 0)
	for step := int64(1); step <= 3; step++ {
		c.save(step, false)
	}
	c.workers[1].close()
	for step := int64(4); step <= 9; step++ {
		c.workers[0].save(step, 0, size, step == 6)
	}
	c.begin(0, 1)
	c.load(fromMemory, 3)
}

// A rank that does not come as far is waited for once, with a word, and not by every save anew.
func TestSavesBeforeOthers(t *testing.T) {
	t.Parallel()
	s, log := testService(t, func(cfg *Config) { cfg.rankLimit = 2 * time.Second })
	dir := t.TempDir()
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(0, 0, size, false)
	a.save(1, 0, size, false)
	for step := int64(2); step <= 40; step++ { // more than there is time for if each waited
		rep, err := a.ask(request{Op: "begin", Step: step, Size: int64(len(state(step, 0, size)))})
		if err != nil || !rep.Busy || !strings.Contains(rep.Note, "shards [1]") {
			t.Fatalf("step %d: %+v, %v", step, rep, err)
		}
	}
	if told := strings.Count(log.String(), "a worker waits until it may save"); told != 1 {
		t.Errorf("it was told %d times\n%s", told, log)
	}
	b.save(0, 1, size, false)
	b.save(1, 1, size, false)
	a.save(41, 0, size, false)
}

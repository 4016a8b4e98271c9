package checkpointd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous"
)

// noDir is a disk that makes no directories.
type noDir struct{ posix }

func (noDir) MkdirAll(spot) error { return errors.New("stale file handle") }

// What was left in memory stays there when its directory cannot be opened: it is all that there is.
func TestNodesDirectoryGone(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	places := c.sigkillAll(0, 1)
	c.change = func(cfg *Config) { cfg.disk = noDir{} }
	successors := c.successors(places...)
	c.meet(successors...)
	for rank, n := range successors {
		w := dial(t, c.nodes[n])
		if _, err := w.ask(request{
			Op: "hello", Version: protocolVersion, Rank: rank, Shard: rank, Shards: 2, Saves: true,
			Dir: c.dir,
		}); err == nil || !strings.Contains(err.Error(), "stale") {
			t.Errorf("hello: %v", err)
		}
		w.close()
	}
	c.end(successors...)
	c.change = nil
	successors = c.successors(places...)
	c.begin(successors...)
	c.load(fromMemory, 1)
	c.onDisk(1)
	c.end(successors...)
}

// halfDisk makes one file, and then hangs.
type halfDisk struct {
	posix
	begin       sync.Once
	first, open chan struct{}
}

func (d *halfDisk) Create(at spot) (*os.File, error) {
	f, err := d.posix.Create(at)
	d.begin.Do(func() { close(d.first) })
	<-d.open
	return f, err
}

// A node is killed while it writes its part of a step. The agent that follows it writes that again.
func TestNodesKilledWhileWriting(t *testing.T) {
	testutil.Long(t)
	d := &halfDisk{first: make(chan struct{}), open: make(chan struct{})}
	c := newNodesUnderTest(t, 1, nil)
	c.change = func(cfg *Config) { cfg.disk = d }
	c.add()
	c.change = nil
	c.begin(0, 1)
	c.save(1, true)
	<-d.first
	order := append([]int{0}, c.successors(c.sigkill(1))...)
	c.begin(order...)
	c.load(fromMemory, 1)
	c.onDisk(1)
	close(d.open)
	c.end(order...)
}

// While agents of torchrun take part workers write by themselves: what was in memory before is older.
func TestNodesDirectRound(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, true)
	testutil.Eventually(t, time.Minute, "the trackers name the step",
		func() bool { return strings.Contains(c.logs[0].String(), "checkpoint written") })
	c.save(2, false)
	c.direct("50")
	c.begin(0, 1)
	c.load(fromDisk, 50)
}

// So is a step that was on its way to disk as such a round began.
func TestNodesDirectRoundWhileWriting(t *testing.T) {
	d := &halfDisk{first: make(chan struct{}), open: make(chan struct{})}
	c := newNodesUnderTest(t, 1, nil)
	c.change = func(cfg *Config) { cfg.disk = d }
	c.add()
	c.begin(0, 1)
	c.save(2, true)
	<-d.first
	c.direct("50")
	c.begin(0, 1)
	c.load(fromDisk, 50)
	close(d.open)
	c.end(0, 1)
}

// direct is a round of nodes 0 and 1 with an agent of torchrun, in which the workers write a step.
func (c *nodesUnderTest) direct(step string) {
	c.t.Helper()
	c.leaveRound()
	for rank := range 2 {
		if err := c.nodes[rank].BeginRound(c.t.Context(), rendezvous.Round{Number: c.round, GroupRank: rank, GroupWorldSize: 2}, nil,
			false); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(c.dir, step), 0o750); err != nil {
		c.t.Fatal(err)
	}
	for path, text := range map[string]string{step + "/rank_0.pt": "x", step + "/rank_1.pt": "x", dlroverTracker: step} {
		if err := os.WriteFile(filepath.Join(c.dir, path), []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// Two groups have gone on without each other. Where they meet the newer one's memory counts, and is written.
func TestNodesLineagesMeet(t *testing.T) {
	c := newNodesUnderTest(t, 4, nil)
	c.begin(1, 0)
	c.save(1, true)
	c.onDisk(1)
	c.begin(1, 0)
	c.begin(1, 0)
	c.save(2, true)
	c.onDisk(2)
	c.kill(1)
	c.begin(2, 3)
	c.load(fromDisk, 2)
	c.save(7, false)
	c.begin(2, 3, 0)
	testutil.Eventually(t, time.Minute, "the newer one's step is on disk", func() bool {
		step, _ := chooseDisk(t.Context(), c.dir)
		return step != nil && step.Step == 7
	})
}

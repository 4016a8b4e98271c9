package checkpointd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/internal/wire"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// nodesUnderTest are the services of several nodes, and the workers of a round: one on each node.
type nodesUnderTest struct {
	t       *testing.T
	dir     string
	round   int
	nodes   []*Service // by group rank; nil for one that is gone
	logs    []*testutil.Buffer
	workers []*client
	change  func(*Config)
}

func newNodesUnderTest(t *testing.T, size int, change func(*Config)) *nodesUnderTest {
	c := &nodesUnderTest{t: t, dir: filepath.Join(t.TempDir(), "ckpt"), round: -1, change: change}
	for range size {
		c.add()
	}
	return c
}

// add starts a node, which takes part from the next round on.
func (c *nodesUnderTest) add() {
	n := len(c.nodes)
	defer func() {
		c.t.Cleanup(func() {
			if c.t.Failed() {
				c.t.Logf("node %d:\n%s", n, c.logs[n])
			}
		})
	}()
	s, log := testService(c.t, func(cfg *Config) {
		cfg.Several, cfg.Token, cfg.Addr, cfg.Node, cfg.Workers = true, []byte("a token of the job"), "127.0.0.1", "node"+strconv.Itoa(n), 1
		if c.change != nil {
			c.change(cfg)
		}
	})
	c.nodes, c.logs = append(c.nodes, s), append(c.logs, log)
}

// begin ends the round before, and begins one of the nodes in this order, with a worker on each that saves its rank's
// shard.
func (c *nodesUnderTest) begin(order ...int) {
	c.t.Helper()
	c.meet(order...)
	for rank, n := range order {
		c.workers = append(c.workers, dial(c.t, c.nodes[n]).hello(c.dir, rank, len(order)))
	}
}

// leaveRound ends the round before.
func (c *nodesUnderTest) leaveRound() {
	c.t.Helper()
	for _, w := range c.workers {
		w.close()
	}
	c.workers = nil
	for _, s := range c.nodes {
		if s != nil && c.round >= 0 {
			s.RoundOver("a test")
		}
	}
	c.round++
}

// meet ends the round before, and begins one of the nodes in this order.
func (c *nodesUnderTest) meet(order ...int) {
	c.t.Helper()
	c.leaveRound()
	space := memstore.NewSpace()
	c.t.Cleanup(func() { _ = space.Close() })
	errs := make(chan error)
	for rank, n := range order {
		go func() {
			errs <- c.nodes[n].BeginRound(c.t.Context(), rendezvous.Round{
				Number: c.round, GroupRank: rank, GroupWorldSize: len(order),
				BaseRank: rank, WorldSize: len(order),
			}, space.Client(), false)
		}()
	}
	for range order {
		if err := <-errs; err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *nodesUnderTest) save(step int64, persist bool) {
	c.t.Helper()
	for rank, w := range c.workers {
		w.save(step, rank, size, persist)
	}
}

// load has all workers restore, and makes sure that all have the same step from the same place, any for "".
func (c *nodesUnderTest) load(source string, step int64) {
	c.t.Helper()
	replies := make(chan reply)
	for rank, w := range c.workers {
		go func() {
			var rep reply
			defer func() { replies <- rep }() // also where load ends the test
			rep = w.load(rank, size)
		}()
	}
	for range c.workers {
		rep := <-replies
		if source == "" {
			source = rep.Source
		}
		if rep.Source != source || source != fromNone && rep.Step != step {
			c.t.Errorf("restored step %d from %s, want %d from %s (%s)\n%s", rep.Step, rep.Source, step, source, rep.Note, c.logs[0])
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// onDisk waits until a step is the newest on disk.
func (c *nodesUnderTest) onDisk(step int64) {
	c.t.Helper()
	testutil.Eventually(c.t, 20*time.Second, "step "+strconv.FormatInt(step, 10)+" on disk", func() bool {
		found, _ := chooseDisk(context.Background(), c.dir)
		return found != nil && found.Step == step
	})
}

// kill ends a node as if it had been killed.
func (c *nodesUnderTest) kill(n int) {
	_ = c.nodes[n].Close()
	c.nodes[n] = nil
}

// TestTeam saves on three nodes, loses workers and nodes, and restores: all the same, from memory where that is left.
func TestNodes(t *testing.T) {
	c := newNodesUnderTest(t, 3, nil)
	c.begin(0, 1, 2)
	c.load(fromNone, 0)
	c.save(1, false)
	c.save(2, true)
	for _, w := range c.workers {
		rep, err := w.ask(request{Op: "wait", Millis: 20_000})
		if err != nil || !rep.Done || rep.Committed != 2 {
			t.Fatalf("waited: %+v %v", rep, err)
		}
	}
	c.onDisk(2)
	c.save(3, false)
	c.workers[1].save(4, 1, size, false) // the others never come so far

	c.begin(0, 1, 2)
	c.load(fromMemory, 3)
	c.onDisk(3)
	c.save(5, false)

	// The ranks move: shards are brought to where they are needed.
	c.begin(2, 0, 1)
	c.load(fromMemory, 5)
	c.onDisk(5)
	c.save(6, false)

	// A node is lost, and with it its part of step 6; what it had of step 5 was brought to another.
	c.kill(1)
	c.add()
	c.begin(2, 0, 3)
	c.load("", 5) // from there, where it has not been tidied away yet
	c.save(7, false)
	c.save(8, false)

	// Now nobody else has what is lost: the disk is left.
	c.kill(3)
	c.add()
	c.begin(4, 0, 2)
	c.load(fromDisk, 5)
	c.save(7, false)
	c.begin(4, 0, 2)
	c.load(fromMemory, 7)
	// The end: what is in memory is written, by all, and nobody leaves early.
	c.save(8, false)
	c.end(4, 0, 2)
	c.onDisk(8)
	if left, _ := filepath.Glob(filepath.Join(c.dir, ownDir, "*-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// end has the workers end, and the nodes leave.
func (c *nodesUnderTest) end(order ...int) {
	c.t.Helper()
	for _, w := range c.workers {
		w.close()
	}
	errs := make(chan error)
	for _, n := range order {
		go func() {
			c.nodes[n].RoundOver("the end")
			errs <- errors.Join(c.nodes[n].Drain(c.t.Context()), c.nodes[n].Close())
		}()
	}
	for range order {
		if err := <-errs; err != nil {
			c.t.Error(err)
		}
	}
}

// TestNodesNotice has one of the nodes hear that its machine will go: the step of all is written, while all go on.
func TestNodesNotice(t *testing.T) {
	c := newNodesUnderTest(t, 3, nil)
	c.begin(0, 1, 2)
	c.load(fromNone, 0)
	for i, noticed := range []int{1, 2} { // the first node leads
		step := int64(i + 1)
		c.save(step, false)
		testutil.Eventually(t, 20*time.Second, fmt.Sprintf("step %d on disk", step), func() bool {
			c.nodes[noticed].Save("a notice") // one that comes before the leader has heard of the step finds nothing new
			found, _ := chooseDisk(context.Background(), c.dir)
			return found != nil && found.Step == step
		})
	}
}

// spread waits until every node of the first round has copies of two shards of a step.
func (c *nodesUnderTest) spread(step int64, loads uint64) {
	c.t.Helper()
	testutil.Eventually(c.t, 20*time.Second, "two copies of a step", func() bool {
		for _, s := range c.nodes {
			if s == nil {
				continue
			}
			s.mu.Lock()
			copies := 0
			for shard := range s.sets[0].shards {
				if s.sets[0].slots.at(shard, moment{Era: s.round<<eraShift | loads, Step: step}) != nil {
					copies++
				}
			}
			s.mu.Unlock()
			if copies != 2 {
				return false
			}
		}
		return true
	})
}

// TestNodesReplicas loses a node whose copies others keep.
func TestNodesReplicas(t *testing.T) {
	c := newNodesUnderTest(t, 4, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1, 2, 3)
	c.load(fromNone, 0)
	for step := range int64(5) {
		c.save(step, false)
	}
	c.spread(4, 1)
	c.kill(0) // the one that leads
	c.add()
	c.begin(1, 2, 3, 4)
	c.load(fromMemory, 4)
	c.onDisk(4)
}

// TestNodesDiskFails: a step is there whole, or not at all, and the error says on which node what failed.
func TestNodesDiskFails(t *testing.T) {
	fail := &slowDisk{open: make(chan struct{})}
	close(fail.open)
	n := 0
	c := newNodesUnderTest(t, 2, func(cfg *Config) {
		if n++; n == 2 {
			cfg.disk = fail
		}
	})
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	fail.fail = errDied
	c.save(2, true)
	_, err := c.workers[0].ask(request{Op: "wait", Millis: 20_000})
	if err == nil || !strings.Contains(err.Error(), "node1") || !strings.Contains(err.Error(), errDied.Error()) {
		t.Fatalf("told: %v", err)
	}
	fail.fail = nil
	c.save(3, true)
	c.onDisk(3)
	if _, err := os.Stat(filepath.Join(c.dir, "2")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("step 2: %v", err)
	}
	c.end(0, 1)
}

// TestNodesDamagedMemory: a damaged copy is neither restored nor written: another node's is, where there is one, else
// the step before, by all.
func TestNodesDamagedMemory(t *testing.T) {
	for replicas, want := range map[int]int64{1: 1, 2: 2} {
		c := newNodesUnderTest(t, 2, func(cfg *Config) { cfg.Replicas = replicas })
		c.begin(0, 1)
		c.save(1, false)
		c.save(2, false)
		if replicas > 1 {
			c.spread(2, 0)
		}
		s := c.nodes[1]
		sealed := func(step int64) (m *memory, ok bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			m = s.sets[0].mem[s.sets[0].slots.at(1, moment{Era: s.round << eraShift, Step: step})]
			return m, m != nil && binary.LittleEndian.Uint32(m.bytes[headerBlocks:]) > 0
		}
		testutil.Eventually(t, 20*time.Second, "checksums", func() bool {
			_, first := sealed(want)
			_, second := sealed(2)
			return first && second
		})
		m, _ := sealed(2)
		m.bytes[headerSize+77] ^= 16
		c.begin(0, 1)
		c.load("", want)
		c.onDisk(want)
		c.end(0, 1)
		c.onDisk(want)
	}
}

// TestNodesFull: where one rank finds no memory, nobody waits for its part: the others' waits end.
func TestNodesFull(t *testing.T) {
	n := 0
	c := newNodesUnderTest(t, 2, func(cfg *Config) {
		if n++; n == 2 {
			cfg.available = func() int64 { return 1 << 10 }
		}
	})
	c.begin(0, 1)
	c.workers[0].save(1, 0, size, true)
	if rep, err := c.workers[1].ask(request{Op: "begin", Step: 1, Size: size, Persist: true}); err != nil || !rep.Full {
		t.Fatalf("%+v: %v", rep, err)
	}
	if rep, err := c.workers[0].ask(request{Op: "wait", Millis: 20_000}); err != nil || !rep.Done || rep.Committed != -1 {
		t.Fatalf("%+v: %v", rep, err)
	}
	c.end(0, 1)
}

// TestNodesOtherShards: a job goes on with another number of ranks. What is in memory is written, and let go.
func TestNodesOtherShards(t *testing.T) {
	c := newNodesUnderTest(t, 3, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1, 2)
	c.save(1, false)
	c.save(2, false)
	c.spread(2, 0)
	for _, w := range c.workers {
		w.close()
	}
	for _, s := range c.nodes {
		s.RoundOver("a test")
	}
	c.kill(2)
	c.begin(0, 1)
	c.onDisk(2)
	c.save(3, true)
	c.onDisk(3)
	testutil.Eventually(t, 20*time.Second, "nothing is left of the three", func() bool {
		for _, s := range c.nodes[:2] {
			s.mu.Lock()
			retired := len(s.retired)
			s.mu.Unlock()
			if retired > 0 {
				return false
			}
		}
		return true
	})
	c.end(0, 1)
}

// TestNodesWithoutToken: without the token nobody hears or says anything.
func TestNodesWithoutToken(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	for _, g := range []greeting{{Op: "join", Rank: 1}, {Op: "fetch"}, {Op: "find"}} {
		d := c.nodes[0].cfg.domain()
		d.Token = []byte("not the token of the job")
		conn, err := dialPeer(t.Context(), d, c.nodes[0].participant.id, g)
		if err == nil {
			conn.Close()
			t.Errorf("%s: who has not the token was let in", g.Op)
		}
	}
	// Friends that ask for nonsense get an answer, and harm nobody.
	for _, g := range []greeting{
		{Op: "fetch", Shard: 99},
		{Op: "fetch", Shard: -1},
		{Op: "find", Path: "x"},
		{Op: "join", Rank: 77},
		{Op: "join", Rank: -1},
		{Op: "?"},
	} {
		conn, err := dialPeer(t.Context(), c.nodes[0].cfg.domain(), c.nodes[0].participant.id, g)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		var head copyHead
		if err := wire.Read(conn, greetingLimit, &head); err == nil && head.Error == "" && g.Op != "join" {
			t.Errorf("%+v: %+v", g, head)
		}
		conn.Close()
	}
	c.begin(0, 1)
	c.load(fromMemory, 1)
	c.end(0, 1)
}

// TestNodesApart: nodes were given different directories. Both say so.
func TestNodesApart(t *testing.T) {
	c := newNodesUnderTest(t, 0, nil)
	for _, dir := range []string{"/data/a", "/data/b"} {
		c.change = func(cfg *Config) { cfg.Dir = dir }
		c.add()
	}
	c.meet(0, 1)
	for n, log := range c.logs {
		if !strings.Contains(log.String(), "/data/a on node node0, /data/b on node node1") {
			t.Errorf("node %d does not say so: %s", n, log)
		}
	}
}

package checkpointd

import "testing"

// newLocalCrew are the services of nodes without a job token.
func newLocalCrew(t *testing.T, size int) *crew {
	return newCrew(t, size, func(c *Config) { c.Token, c.Addr = nil, "" })
}

// beginCopies begins a round of these nodes with a worker on each that has the only shard, as with DistributedDataParallel: rank 0's
// counts, and the others' are copies for their nodes.
func (c *crew) beginCopies(order ...int) {
	c.t.Helper()
	c.meet(order...)
	for rank, n := range order {
		w := dial(c.t, c.nodes[n])
		rep, err := w.ask(request{Op: "hello", Version: protocolVersion, Rank: rank, Shards: 1, Saves: rank == 0, Copies: true, Dir: c.dir})
		if err != nil || !rep.Saves || !rep.Local {
			c.t.Fatalf("%+v, %v", rep, err)
		}
		c.workers = append(c.workers, w)
	}
}

// saveCopies has each worker save the same.
func (c *crew) saveCopies(step int64, persist bool) {
	c.t.Helper()
	for _, w := range c.workers {
		w.save(step, 0, size, persist)
	}
}

func (c *crew) loadCopies(source string, step int64) {
	c.t.Helper()
	for rank, w := range c.workers {
		rep := w.load(0, size)
		if rep.Source != source || rep.Step != step {
			c.t.Fatalf("rank %d restored step %d from %s, want %d from %s (%s)\n%s", rank, rep.Step, rep.Source, step, source, rep.Note, c.logs[0])
		}
	}
}

// TestLocalShards: nodes without a token keep their own workers' shards in memory, and all restore the newest step that each of them
// has. When a node is lost all restore what is on disk.
func TestLocalShards(t *testing.T) {
	c := newLocalCrew(t, 3)
	c.begin(0, 1, 2)
	c.load(fromNone, 0)
	c.save(10, true)
	c.onDisk(10)
	for step := range int64(7) {
		c.save(11+step, false)
	}
	for rank, w := range c.workers[:2] {
		w.save(18, rank, size, false) // the third dies first
	}
	c.begin(0, 1, 2)
	c.load(fromMemory, 17)
	c.onDisk(17) // behind the workers
	c.save(18, false)
	if err := c.nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	c.nodes[2] = nil
	c.add()
	c.begin(0, 1, 3)
	c.load(fromDisk, 17)
}

// TestLocalCopies: with one shard each node has a copy of its own, which its workers restore. Where a node is new the others' copy is
// written first, and all read that.
func TestLocalCopies(t *testing.T) {
	c := newLocalCrew(t, 2)
	c.beginCopies(0, 1)
	c.loadCopies(fromNone, 0)
	for step := range int64(17) {
		c.saveCopies(1+step, false)
	}
	c.beginCopies(1, 0)
	c.loadCopies(fromMemory, 17)
	c.saveCopies(18, false)
	c.workers[0].save(19, 0, size, false) // the other one dies first
	c.beginCopies(1, 0)
	c.loadCopies(fromMemory, 18)
	c.saveCopies(19, false)
	if err := c.nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	c.nodes[0] = nil
	c.add()
	c.beginCopies(1, 2)
	c.loadCopies(fromDisk, 19)
	c.saveCopies(20, true)
	c.onDisk(20)
	c.beginCopies(1) // the job has shrunk
	c.loadCopies(fromMemory, 20)
}

// TestLocalOneSaves: a script in which rank 0 alone calls for a save goes on from it, too.
func TestLocalOneSaves(t *testing.T) {
	c := newLocalCrew(t, 2)
	c.beginCopies(0, 1)
	for step := range int64(5) {
		c.workers[0].save(1+step, 0, size, false)
	}
	c.beginCopies(0, 1)
	c.loadCopies(fromDisk, 5)
}

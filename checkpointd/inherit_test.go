package checkpointd

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// sigkill ends a node as SIGKILL does: what it has in memory stays, with a label that nobody looks after.
func (c *nodesUnderTest) sigkill(n int) (memory string) {
	c.t.Helper()
	s := c.nodes[n]
	s.mu.Lock()
	memory = s.cfg.Memory
	s.segments.label.close()
	s.segments = nil
	for _, st := range s.allSetsLocked() {
		for _, m := range st.mem {
			m.path = ""
		}
	}
	s.mu.Unlock()
	c.kill(n)
	return memory
}

// successors are as many nodes as there are places where something was left, which find it.
func (c *nodesUnderTest) successors(places ...string) (order []int) {
	c.t.Helper()
	before := c.change
	for _, memory := range places {
		c.change = func(cfg *Config) {
			if before != nil {
				before(cfg)
			}
			cfg.Memory = memory
		}
		order = append(order, len(c.nodes))
		c.add()
	}
	c.change = before
	return order
}

// sigkillAll kills all nodes of a round.
func (c *nodesUnderTest) sigkillAll(order ...int) (places []string) {
	c.t.Helper()
	for _, n := range order {
		places = append(places, c.sigkill(n))
	}
	return places
}

// nothingIn wants places to be empty.
func (c *nodesUnderTest) nothingIn(places ...string) {
	c.t.Helper()
	for _, memory := range places {
		if left := inMemory(c.t, memory); len(left) > 0 {
			c.t.Errorf("left in memory: %v", left)
		}
	}
}

// TestInherit kills all nodes of a job, and again: the next ones have the newest step that all of them had saved, in
// the order that they have now, bit for bit, and bring it to disk.
func TestInherit(t *testing.T) {
	c := newNodesUnderTest(t, 3, nil)
	order := []int{0, 1, 2}
	c.begin(order...)
	c.load(fromNone, 0)
	c.save(1, true)
	c.onDisk(1)
	c.save(2, false)
	c.save(3, false)
	c.workers[1].save(4, 1, size, false) // the others never come so far
	places := c.sigkillAll(order...)
	c.round = -1 // they know nothing of what was before

	order = c.successors(places[1], places[2], places[0])
	c.begin(order...)
	c.load(fromMemory, 3)
	c.onDisk(3)
	c.save(4, false)
	c.save(5, false)
	lineage := c.nodes[order[0]].participant.lineage
	places = c.sigkillAll(order...)
	c.round = -1

	order = c.successors(places...)
	c.begin(order...)
	c.load(fromMemory, 5)
	if now := c.nodes[order[2]].participant.lineage; now != lineage || now == 0 {
		t.Errorf("the lineage was %d, and is %d", lineage, now)
	}
	c.save(6, false)
	c.end(order...)
	c.onDisk(6)
	c.nothingIn(places...)
}

// TestInheritTwice: an agent was killed while it took over what another one had left, and both labels are there.
func TestInheritTwice(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	c.save(2, false)
	places := c.sigkillAll(0, 1)
	c.round = -1
	second := c.successors(places...)
	for _, n := range second { // they come as far as the new label: the old names are still there
		s := c.nodes[n]
		left := s.participant.leftBehind()
		if len(left) != 1 || len(left[0].sets) != 1 {
			t.Fatalf("left behind: %+v", left)
		}
		s.mu.Lock()
		s.participant.lineage = left[0].label.Lineage
		st := s.successorLocked(left[0].sets[0])
		st.slots.told = &toldMoments{}
		s.sets = append(s.sets, st)
		if err := s.takeOverLocked(st, left[0].sets[0], func(at moment) (moment, bool) { return at, true }); err != nil {
			t.Error(err)
		}
		s.noteLocked()
		s.mu.Unlock()
		left[0].close()
	}
	c.sigkillAll(second...)
	if labels := labelPaths(places[0]); len(labels) != 2 {
		t.Fatalf("labels: %v", labels)
	}
	third := c.successors(places...)
	c.begin(third...)
	for _, n := range third {
		s := c.nodes[n]
		s.mu.Lock()
		if len(s.sets) != 1 || len(s.sets[0].mem) != 2 {
			t.Errorf("%d sets of %d copies", len(s.sets), len(s.sets[0].mem))
		}
		s.mu.Unlock()
	}
	c.load(fromMemory, 2)
	c.end(third...)
	c.onDisk(2)
	c.nothingIn(places...)
}

// TestInheritLate: one node is killed, and comes back when the others have gone on without it. What it has left is of
// the same steps, and of no use.
func TestInheritLate(t *testing.T) {
	c := newNodesUnderTest(t, 3, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1, 2)
	c.save(1, false)
	c.save(2, false)
	c.spread(2, 0)
	place := c.sigkill(2)
	c.add() // another host comes in its place
	c.begin(0, 1, 3)
	c.load(fromMemory, 2)
	c.onDisk(2)
	c.save(3, false)
	c.spread(3, 1)
	c.kill(3)
	late := c.successors(place)
	c.begin(0, 1, late[0])
	c.load(fromMemory, 3)
	c.save(4, false)
	c.end(0, 1, late[0])
	c.onDisk(4)
	c.nothingIn(place)
}

// TestStepOnItsWayIsOurs: a node that is back may find a step on disk that was being written when the others said what they
// have written. It is theirs all the same, and what the node has in memory is given up.
func TestStepOnItsWayIsOurs(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	s := c.nodes[0]
	s.mu.Lock()
	st := s.sets[0]
	next, at := st.next, st.nextAt
	st.next, st.nextAt = "on-its-way", moment{Step: 7}
	s.mu.Unlock()
	n := s.participant.nodeState(nil)
	s.mu.Lock()
	st.next, st.nextAt = next, at
	s.mu.Unlock()
	if got, known := n.Heads["on-its-way"]; !known || got.Step != 7 {
		t.Errorf("the heads are %+v", n.Heads)
	}
	c.end(0, 1)
}

// TestInheritBack: one of the nodes is killed and comes back: what it had is there.
func TestInheritBack(t *testing.T) {
	c := newNodesUnderTest(t, 3, nil)
	c.begin(0, 1, 2)
	c.save(1, false)
	c.save(2, false)
	place := c.sigkill(0) // the one that leads
	back := c.successors(place)
	c.begin(1, back[0], 2)
	c.load(fromMemory, 2)
	c.onDisk(2)
	c.end(1, back[0], 2)
	c.nothingIn(place)
}

// TestInheritOfAnotherJob: two jobs with one run id were killed, each of which had saved the same steps in its first
// round. A node that has what the older one left is among those of the newer: nothing is put together, and what is
// older goes.
func TestInheritOfAnotherJob(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	c.save(7, false)
	older := c.sigkillAll(0, 1)
	c.round = -1
	c.add()
	c.add()
	c.begin(2, 3) // other hosts
	c.load(fromDisk, 1)
	for rank, w := range c.workers { // a step of the same number and bytes that differ
		slot, err := w.begin(7, state(700, rank, size), false)
		if err == nil {
			err = w.ready(slot, 7, size, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	newer := c.sigkillAll(2, 3)
	c.round = -1
	mixed := c.successors(older[0], newer[1])
	c.begin(mixed...)
	c.load(fromDisk, 1)
	if !strings.Contains(c.logs[mixed[0]].String(), "the job has gone on without them") {
		t.Errorf("nobody was told: %s", c.logs[mixed[0]])
	}
	if labels := labelPaths(older[0]); len(labels) != 1 {
		t.Errorf("labels: %v", labels)
	}
	c.save(8, false)
	c.end(mixed...)
	c.onDisk(8)
	c.nothingIn(older[0], newer[1])
	for _, memory := range []string{older[1], newer[0]} {
		if err := (&MemoryStep{label: theOnlyLabel(t, memory)}).Drop(); err != nil {
			t.Error(err)
		}
	}
}

// TestInheritOthersWrote: somebody else has written to the directory since. That is restored, and what is in memory
// stays.
func TestInheritOthersWrote(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	c.save(2, false)
	places := c.sigkillAll(0, 1)
	c.round = -1
	if err := testCommitment(posix{}, c.dir, 500, 2, noPath).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	successors := c.successors(places...)
	c.begin(successors...)
	c.load(fromDisk, 500)
	c.end(successors...)
	for i, memory := range places {
		if log := c.logs[successors[i]].String(); !strings.Contains(log, errOthers.Error()) {
			t.Errorf("nobody was told: %s", log)
		}
		if err := (&MemoryStep{label: theOnlyLabel(t, memory)}).Drop(); err != nil {
			t.Errorf("it was taken: %v", err)
		}
	}
}

// TestInheritCommitted: the step that all nodes had was committed just before they were killed, and none of them was
// told. It is not written again, and later ones count as later.
func TestInheritCommitted(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, true)
	c.onDisk(1)
	c.save(2, true)
	c.onDisk(2)
	committed, err := List(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.nodes { // their labels are as before the last view came
		testutil.Eventually(t, 20*time.Second, "the node knows", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.sets[0].head == committed[0].Attempt
		})
		s.mu.Lock()
		st := s.sets[0]
		if st.next != committed[0].Attempt || st.nextAt != st.committed {
			t.Errorf("it does not know of the attempt: %q %+v", st.next, st.nextAt)
		}
		st.head, st.committed = committed[1].Attempt, moment{Era: st.committed.Era, Step: 1}
		s.noteLocked()
		s.mu.Unlock()
	}
	places := c.sigkillAll(0, 1)
	c.round = -1
	successors := c.successors(places...)
	c.begin(successors...)
	c.load(fromMemory, 2)
	c.end(successors...)
	if after, err := List(c.dir); err != nil || after[0].Step != 2 || after[0].Attempt != committed[0].Attempt {
		t.Errorf("%+v: %v", after, err)
	}
	c.nothingIn(places...)
}

// TestNodesLearns: a node that leads dies when it has committed a step and told nobody. Nothing older is restored, or
// written.
func TestNodesLearns(t *testing.T) {
	c := newNodesUnderTest(t, 2, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1)
	c.save(2, true)
	c.onDisk(2)
	c.spread(2, 0)
	s := c.nodes[1]
	testutil.Eventually(t, 20*time.Second, "the other node knows", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sets[0].committed.Step == 2
	})
	c.kill(0)
	s.mu.Lock()
	st := s.sets[0]
	st.committed, st.head = planner.Never, ""
	for slot := range st.copies {
		slot.At.Step = 1 // it did not get the newest
	}
	s.mu.Unlock()
	c.add()
	c.begin(1, 2)
	c.load(fromDisk, 2)
	c.end(1, 2)
	c.onDisk(2)
}

// TestInheritOtherShards: fewer nodes come back. What all of them have is written, and restored from disk by others.
func TestInheritOtherShards(t *testing.T) {
	c := newNodesUnderTest(t, 3, func(cfg *Config) { cfg.Replicas = 2 })
	c.begin(0, 1, 2)
	c.save(1, false)
	c.save(2, false)
	c.spread(2, 0)
	places := c.sigkillAll(0, 1, 2)
	c.round = -1
	successors := c.successors(places[:2]...)
	c.begin(successors...)
	c.onDisk(2)
	c.save(3, true)
	c.onDisk(3)
	for _, n := range successors {
		testutil.Eventually(t, 20*time.Second, "nothing is left of the three", func() bool {
			s := c.nodes[n]
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.retired) == 0 && len(s.sets) == 1 && s.sets[0].shards == 2
		})
	}
	// Killed again: there are steps of two and of three shards, and three come.
	places = append(c.sigkillAll(successors...), places[2])
	c.round = -1
	successors = c.successors(places...)
	c.begin(successors...)
	c.save(4, false)
	c.end(successors...)
	c.onDisk(4)
	c.nothingIn(places...)
}

// TestNodesFailedStays: the last step cannot be written. What all nodes have of it stays, and is there when they start
// again.
func TestNodesFailedStays(t *testing.T) {
	for _, hurry := range []bool{false, true} {
		bad := &slowDisk{open: make(chan struct{}), fail: errDied}
		close(bad.open)
		c := newNodesUnderTest(t, 2, func(cfg *Config) { cfg.disk = bad })
		c.begin(0, 1)
		c.save(1, false)
		var places []string
		errs := make(chan error)
		for _, w := range c.workers {
			w.close()
		}
		for _, s := range c.nodes {
			places = append(places, s.cfg.Memory)
			go func() {
				s.RoundOver("the end")
				err := s.Drain(t.Context())
				if hurry {
					s.mu.Lock()
					s.participant.hurried = true
					s.mu.Unlock()
				}
				errs <- errors.Join(err, s.Close())
			}()
		}
		for range c.nodes {
			if err := <-errs; !errors.Is(err, errDied) && (err == nil || !strings.Contains(err.Error(), errDied.Error())) {
				t.Errorf("nobody was told: %v", err)
			}
		}
		if hurry {
			c.nothingIn(places...)
			continue
		}
		bad.fail = nil
		c.round = -1
		successors := c.successors(places...)
		c.begin(successors...)
		c.load(fromMemory, 1)
		c.end(successors...)
		c.onDisk(1)
		c.nothingIn(places...)
	}
}

// TestDecide: the newest lineage that nodes take part in, else the newest of which something is left, else a new one;
// rounds go on.
func TestDecide(t *testing.T) {
	now := time.Unix(0, 99)
	for name, c := range map[string]struct {
		nodes   []nodeState
		lineage int64
		round   uint64
		left    bool
	}{
		"first":             {[]nodeState{{}, {}}, 99, 1, false},
		"all were killed":   {[]nodeState{{Left: []int64{5}, Round: 4}, {Left: []int64{3, 7}, Round: 2}, {}}, 7, 5, true},
		"one was killed":    {[]nodeState{{Lineage: 5, Round: 4}, {Left: []int64{5}, Round: 3}}, 5, 5, true},
		"one is older":      {[]nodeState{{Lineage: 5, Round: 4}, {Left: []int64{3}, Round: 30}}, 5, 31, false},
		"one is newer":      {[]nodeState{{Lineage: 5, Round: 4}, {Left: []int64{8}}}, 5, 5, false},
		"two that meet":     {[]nodeState{{Lineage: 5, Round: 4}, {Lineage: 6, Round: 1}}, 6, 5, false},
		"the workers again": {[]nodeState{{Lineage: 5, Round: 4}, {Lineage: 5, Round: 4}}, 5, 5, false},
	} {
		lineage, era, left := decide(c.nodes, now, 12345)
		if lineage != c.lineage || era != firstEra(c.round, 12345) || left != c.left {
			t.Errorf("%s: %d, %x, %v", name, lineage, era, left)
		}
	}
	if firstEra(2, 0) <= firstEra(1, 1<<24-1)|loadsMax {
		t.Error("a later round is not later")
	}
}

// hungDisk is a disk that does not answer: whoever reads the directory's trackers waits until release.
func (c *nodesUnderTest) hungDisk() (release func()) {
	answers, disk := make(chan struct{}), c.dir
	hangs := func(dir string) {
		if dir == disk {
			<-answers
		}
	}
	beforeHead.Store(&hangs)
	return func() {
		beforeHead.Store(nil)
		close(answers)
	}
}

// TestInheritHungDisk: the disk does not answer when the next nodes start. What was left on it stays, and workers that
// save elsewhere do so.
func TestInheritHungDisk(t *testing.T) {
	testutil.Long(t)
	c := newNodesUnderTest(t, 2, func(cfg *Config) { cfg.leftLimit = 2 * time.Second })
	c.begin(0, 1)
	c.save(1, false)
	places := c.sigkillAll(0, 1)
	c.round = -1
	release, hung := c.hungDisk(), c.dir
	successors := c.successors(places...)
	c.dir = filepath.Join(t.TempDir(), "elsewhere")
	c.begin(successors...)
	c.load(fromNone, 0)
	c.save(1, true)
	c.onDisk(1)
	c.end(successors...)
	c.dir = hung
	release()
	for i, memory := range places {
		if log := c.logs[successors[i]].String(); !strings.Contains(log, "the disk does not answer") {
			t.Errorf("nobody was told: %s", log)
		}
		drop := func() bool {
			for _, path := range labelPaths(memory) {
				if err := (&MemoryStep{label: path}).Drop(); err == nil {
					return true
				}
			}
			return false
		}
		testutil.Eventually(t, 20*time.Second, "what was left is there, and nobody's", drop)
	}
}

// TestInheritSlowDisk: a round ends while the disk is asked what of the memory of a killed muster is needed. The next
// one has it.
func TestInheritSlowDisk(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			c := newNodesUnderTest(t, 2, nil)
			c.begin(0, 1)
			c.save(1, false)
			places := c.sigkillAll(0, 1)
			c.round = -1
			release := c.hungDisk()
			successors := c.successors(places...)
			c.leaveRound()
			for _, limit := range []time.Duration{0, 200 * time.Millisecond} { // over before it begins, and meanwhile
				for rank, n := range successors[:size] {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					space := memstore.NewSpace()
					r, board := rendezvous.Round{Number: c.round, GroupRank: rank, GroupWorldSize: size}, rendezvous.Store(space.Client())
					if size == 1 {
						board = nil
					}
					if err := c.nodes[n].BeginRound(ctx, r, board, false); err == nil {
						t.Error("a round began that was over")
					}
					cancel()
					_ = space.Close()
				}
			}
			release()
			c.begin(successors...)
			c.load(fromMemory, 1)
			c.end(successors...)
			c.onDisk(1)
			for _, n := range successors {
				if log := c.logs[n].String(); strings.Contains(log, "does not answer") {
					t.Errorf("a disk was blamed for the end of a round: %s", log)
				}
			}
		})
	}
}

// TestInheritPart: a node does not find its part of what a killed job has left. The parts of the others stay, for a
// start at which it does, as long as nobody has saved since.
func TestInheritPart(t *testing.T) {
	c := newNodesUnderTest(t, 2, nil)
	c.begin(0, 1)
	c.save(1, false)
	places := c.sigkillAll(0, 1)
	c.round = -1
	first := c.successors(places[0])
	c.add()
	first = append(first, len(c.nodes)-1)
	c.begin(first...)
	c.load(fromNone, 0)
	c.end(first...)
	if log := c.logs[first[0]].String(); !strings.Contains(log, HowToGoOn) {
		t.Errorf("nobody was told: %s", log)
	}
	c.workers, c.round = nil, -1
	second := c.successors(places...)
	c.begin(second...)
	c.load(fromMemory, 1)
	c.end(second...)
	c.onDisk(1)
	c.nothingIn(places...)
}

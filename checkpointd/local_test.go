package checkpointd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// newLocalNodes are the services of nodes without a job token.
func newLocalNodes(t *testing.T, size int) *nodesUnderTest {
	return newNodesUnderTest(t, size, func(c *Config) { c.Token, c.Addr = nil, "" })
}

// beginCopies begins a round of these nodes with a worker on each that has the only shard, as with
// DistributedDataParallel: rank 0's counts, and the others' are copies for their nodes.
func (c *nodesUnderTest) beginCopies(order ...int) {
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
func (c *nodesUnderTest) saveCopies(step int64, persist bool) {
	c.t.Helper()
	for _, w := range c.workers {
		w.save(step, 0, size, persist)
	}
}

func (c *nodesUnderTest) loadCopies(source string, step int64) {
	c.t.Helper()
	for rank, w := range c.workers {
		rep := w.load(0, size)
		if rep.Source != source || rep.Step != step {
			c.t.Fatalf("rank %d restored step %d from %s, want %d from %s (%s)\n%s", rank, rep.Step, rep.Source, step, source,
				rep.Note, c.logs[0])
		}
	}
}

// TestLocalShards: nodes without a token keep their own workers' shards in memory, and all restore the newest step that
// each of them has. When a node is lost all restore what is on disk.
func TestLocalShards(t *testing.T) {
	c := newLocalNodes(t, 3)
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

// TestLocalCopies: with one shard each node has a copy of its own, which its workers restore. Where a node is new the
// others' copy is written first, and all read that.
func TestLocalCopies(t *testing.T) {
	c := newLocalNodes(t, 2)
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
	c := newLocalNodes(t, 2)
	c.beginCopies(0, 1)
	for step := range int64(5) {
		c.workers[0].save(1+step, 0, size, false)
	}
	c.beginCopies(0, 1)
	c.loadCopies(fromDisk, 5)
}

// TestLocalDiskOfOne: a step that rank 0 alone saves for the disk is written, although the others have saved before and
// do not come to it.
func TestLocalDiskOfOne(t *testing.T) {
	c := newLocalNodes(t, 2)
	c.beginCopies(0, 1)
	for step := range int64(3) {
		c.saveCopies(1+step, false)
	}
	c.workers[0].save(4, 0, size, true)
	if rep, err := c.workers[0].ask(request{Op: "wait", Millis: 20_000}); err != nil || !rep.Done || rep.Committed != 4 {
		t.Errorf("%+v, %v", rep, err)
	}
	c.onDisk(4)
	c.beginCopies(0, 1)
	c.loadCopies(fromDisk, 4)
}

// TestLocalRanksMoved: nodes that have changed places read what was saved from disk, and keep none of each other's
// shards in memory.
func TestLocalRanksMoved(t *testing.T) {
	c := newLocalNodes(t, 2)
	c.begin(0, 1)
	c.save(1, false)
	c.save(2, false)
	c.begin(1, 0)
	c.load(fromDisk, 2)
	for step := range int64(3) {
		c.save(3+step, false)
	}
	testutil.Eventually(t, 20*time.Second, "memory of the shards that others save now is free", func() bool {
		for rank, n := range []int{1, 0} {
			s := c.nodes[n]
			s.mu.Lock()
			left := len(s.sets[0].slots.shards[1-rank])
			s.mu.Unlock()
			if left > 0 {
				return false
			}
		}
		return true
	})
	c.begin(1, 0)
	c.load(fromMemory, 5)
}

// TestLocalNodeDies: a node that is killed while the others wait for the last step leaves no end that breaks. They wait
// for what it alone had until it is not heard of any more, and say what is lost.
func TestLocalNodeDies(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, dies := range map[string]int{"one that follows": 1, "the one that leads": 0} {
		t.Run(name, func(t *testing.T) {
			c := newNodesUnderTest(t, 2, func(c *Config) { c.Token, c.Addr, c.beat = nil, "", 200*time.Millisecond })
			c.begin(0, 1)
			c.load(fromNone, 0)
			c.save(1, false)
			for _, w := range c.workers {
				w.close()
			}
			dead := c.nodes[dies].participant
			dead.s.mu.Lock()
			conn := dead.conn
			dead.s.mu.Unlock()
			if l := dead.leading; l != nil {
				for _, link := range l.links {
					link.cancel()
				}
			}
			if over, ok := conn.(*boardConn); ok {
				over.cancel()
			}
			s := c.nodes[1-dies]
			s.RoundOver("the job ends")
			err := s.Drain(t.Context())
			if dies == 0 && (err == nil || !strings.Contains(err.Error(), "is not known")) {
				t.Errorf("%v", err)
			}
			if dies == 1 && !strings.Contains(c.logs[0].String(), "not heard of any more") {
				t.Errorf("%v\n%s", err, c.logs[0])
			}
		})
	}
}

// TestLocalLeaves: a node that gives up the last step, at a second signal, is missed at once.
func TestLocalLeaves(t *testing.T) {
	c := newLocalNodes(t, 2)
	c.begin(0, 1)
	c.load(fromNone, 0)
	c.save(1, false)
	for _, w := range c.workers {
		w.close()
	}
	began := time.Now()
	given, cancel := context.WithCancel(t.Context())
	cancel()
	s := c.nodes[1]
	if err := s.Drain(given); err == nil {
		t.Error("it waited")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	c.nodes[1] = nil
	c.nodes[0].RoundOver("the job ends")
	_ = c.nodes[0].Drain(t.Context()) // there may be nothing that can be written
	if took := time.Since(began); took > beatsMissed*boardBeat {
		t.Errorf("it was missed after %v", took)
	}
}

// TestLocalHostileViews: without a token whoever writes on the board can show a node what no leader says. It gets no
// copy from elsewhere, and asks nobody for one.
func TestLocalHostileViews(t *testing.T) {
	for name, set := range map[string]func(*planner.SetView){
		"a decision that names who has a copy": func(v *planner.SetView) {
			v.Decisions = []planner.Decision{{Source: planner.FromMemory, At: moment{Era: 1, Step: 1}, From: []int{0}}}
		},
		"a copy to be got": func(v *planner.SetView) { v.Fetch = []planner.Fetch{{At: moment{Era: 1, Step: 1}}} },
	} {
		t.Run(name, func(t *testing.T) {
			c := newLocalNodes(t, 1)
			s := c.nodes[0]
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			space := memstore.NewSpace()
			defer space.Close()
			board := space.Client()
			if err := say(t.Context(), board, leaderKey, roundCall{Lineage: 7, Era: firstEra(1, 1)}); err != nil {
				t.Fatal(err)
			}
			if err := s.BeginRound(t.Context(), rendezvous.Round{GroupRank: 1, GroupWorldSize: 2}, board, false); err != nil {
				t.Fatal(err)
			}
			v := planner.View{Addrs: []string{string(peertls.NewIdentity(l.Addr().String())), ""}, Sets: []planner.SetView{{
				Key: planner.Key{Dir: c.dir, Shards: 1}, Open: true, NextAt: planner.Never, Committed: planner.Never,
				FailedAt: planner.Never,
			}}}
			view := func() {
				v.Seen++
				text, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				if err := say(t.Context(), board, viewKey(1), said{From: "agent-x", N: v.Seen, Text: text}); err != nil {
					t.Fatal(err)
				}
			}
			w := dial(t, s)
			said := make(chan error, 1)
			go func() {
				_, err := w.ask(request{Op: "hello", Version: protocolVersion, Shards: 1, Saves: true, Dir: c.dir})
				said <- err
			}()
			testutil.Eventually(t, 20*time.Second, "hello", func() bool {
				view() // as often as reports come
				select {
				case err := <-said:
					return err == nil
				default:
					return false
				}
			})
			set(&v.Sets[0])
			view()
			if _, err := w.ask(request{Op: "load"}); err == nil {
				t.Error("it was believed")
			}
			if !strings.Contains(c.logs[0].String(), errNoToken.Error()) {
				t.Errorf("the log does not say so: %s", c.logs[0])
			}
			if err := l.(*net.TCPListener).SetDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if conn, err := l.Accept(); err == nil {
				_ = conn.Close()
				t.Error("it asked for a copy")
			}
		})
	}
}

// TestLocalDirectory: without a token a node that leads opens no directory that only another node has named, though
// this user has had checkpoints there before.
func TestLocalDirectory(t *testing.T) {
	c := newLocalNodes(t, 2)
	other := filepath.Join(t.TempDir(), "another's")
	if err := os.MkdirAll(filepath.Join(other, ownDir), 0o700); err != nil {
		t.Fatal(err)
	}
	c.meet(0, 1)
	said := make(chan error, 1)
	go func() {
		_, err := dial(t, c.nodes[1]).ask(request{Op: "hello", Version: protocolVersion, Shards: 1, Saves: true, Dir: other})
		said <- err
	}()
	testutil.Eventually(t, 20*time.Second, "the leader hears of it", func() bool {
		l := c.nodes[0].participant.leads()
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.planner.View(1).Sets) > 0
	})
	c.nodes[0].RoundOver("its workers have ended") // none of them is to name it any more
	if err := <-said; err == nil || !strings.Contains(err.Error(), errNotNamed.Error()) {
		t.Errorf("%v", err)
	}
}

// TestStepWithoutFiles: nodes that say they have written nothing commit nothing: it would be the newest step, and older
// ones would go.
func TestStepWithoutFiles(t *testing.T) {
	s, _ := testService(t, nil)
	dir := filepath.Join(t.TempDir(), "ckpt")
	s.dirs[dir] = true
	own := s.participant
	s.participant = &participant{local: true}
	defer func() { s.mu.Lock(); s.participant = own; s.mu.Unlock() }()
	a := planner.Action{
		Kind: planner.Commit, Key: planner.Key{Dir: dir, Shards: 1}, At: moment{Step: 9}, Attempt: "aaaa", Keep: 1,
		Results: []json.RawMessage{[]byte(`{"step_dir":"9"}`)},
	}
	if err := (&leading{s: s, ctx: t.Context()}).commit(a); err == nil {
		t.Error("it was committed")
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// TestLocalElsewhere: a rank that restores sharded states in another form than they were saved in needs what only the
// other node has in memory. It has that from disk, where the step is written behind the workers.
func TestLocalElsewhere(t *testing.T) {
	t.Parallel()
	forks, packages := trainForks(t), t.TempDir()
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	c := newLocalNodes(t, 2)
	c.meet(0, 1)
	store := filepath.Join(t.TempDir(), "store")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ranks sync.WaitGroup
	for rank, s := range c.nodes {
		env := append(os.Environ(), "PYTHONPATH="+packages, "MUSTER_SOCKET="+s.cfg.Socket, "RANK="+strconv.Itoa(rank), "WORLD_SIZE=2",
			"LOCAL_WORLD_SIZE=1", "LOCAL_RANK=0",
			"GROUP_WORLD_SIZE=2", "PYTHONWARNINGS=ignore", "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1")
		ranks.Go(func() {
			out, err := forks.Run(ctx, env, filepath.Join("testdata", "elsewhere.py"), c.dir, store)
			if err != nil || !bytes.HasPrefix(out, []byte("restored 7 from memory\n")) { // behind it, what trainForks says
				t.Errorf("rank %d: %v\n%s", rank, err, out)
				cancel() // the other one need not wait
			}
		})
	}
	testutil.Eventually(t, time.Minute, "both have saved", func() bool {
		found, err := filepath.Glob(store + ".saved.*")
		return err == nil && len(found) == len(c.nodes) || ctx.Err() != nil
	})
	c.meet(0, 1) // as if the workers had started again
	if err := os.WriteFile(store+".again", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ranks.Wait()
}

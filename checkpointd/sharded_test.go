package checkpointd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"muster/internal/python"
	"muster/internal/testutil"
)

// runRanks runs a script as the ranks of a job on this node, with our packages on its path, and returns what they
// print.
func runRanks(t *testing.T, socket string, ranks int, script string, args ...string) string {
	t.Helper()
	return runRanksOf(t, trainForks(t), nil, socket, ranks, script, args...)
}

// runRanksOf is runRanks in other forks, and with folders whose packages are on Python's path behind ours.
func runRanksOf(t *testing.T, forks *testutil.Forks, folders []string, socket string, ranks int, script string, args ...string) string {
	t.Helper()
	packages := t.TempDir()
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	packages = strings.Join(append([]string{packages}, folders...), ":")
	var wg sync.WaitGroup
	outs := make([]string, ranks) // of each rank's own: lines that are written in pieces would mix
	for rank := range ranks {
		world := strconv.Itoa(ranks)
		env := append(os.Environ(), "PYTHONPATH="+packages, "MUSTER_SOCKET="+socket, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+world,
			"LOCAL_WORLD_SIZE="+world,
			"PYTHONWARNINGS=ignore", "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1", "LOCAL_RANK="+strconv.Itoa(rank),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT=0", "DS_ACCELERATOR=cpu", "HF_HUB_OFFLINE=1")
		wg.Go(func() {
			out, err := forks.Run(t.Context(), env, append([]string{script}, args...)...)
			if outs[rank] = string(out); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	out := strings.Join(outs, "")
	if t.Failed() {
		t.Fatal(out)
	}
	return out
}

// TestSharded has two ranks keep sharded states of all kinds, in memory and on disk, through our own calls and
// DLRover's. Then a process without muster reads the directories, and another number of ranks restores what was in
// memory only.
func TestSharded(t *testing.T) {
	t.Parallel()
	root, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
	s, log := testService(t, nil)
	out := runRanks(t, s.cfg.Socket, 2, filepath.Join("testdata", "sharded.py"), root, store)
	for _, line := range []string{"any state", "FSDP, older calls", "newer calls, newer", "newer calls, full", "without muster"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("not done: %s\n%s", line, out)
		}
	}
	s.RoundOver("the test wants it")
	one := filepath.Join(t.TempDir(), "one.py")
	if err := os.WriteFile(one, []byte(restoresAlone), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runRanks(t, s.cfg.Socket, 1, one, filepath.Join(root, "any")); !strings.Contains(out, "restored 6 from disk") {
		t.Errorf("%s\n%s", out, log.String())
	}
	env := append(os.Environ(), "PYTHONPATH="+testutil.PeerPackages(t, "accelerate")) // it has safetensors
	text, err := torchForks(t).Run(t.Context(), env, filepath.Join("testdata", "sharded_check.py"), root)
	if err != nil || strings.Count(string(text), "equal ") != 5 {
		t.Errorf("%v\n%s", err, text)
	}
	for _, name := range []string{"any", "fsdp", "newer", "newer2", "full", "full2", "tensors"} {
		steps, err := List(filepath.Join(root, name))
		if err != nil || len(steps) == 0 {
			t.Errorf("no steps in %s: %v", name, err)
		}
		for _, s := range steps {
			if err := s.Verify(); err != nil {
				t.Errorf("%s: step %d: %v", name, s.Step, err)
			}
		}
	}
	// What was written without muster is found by it, too.
	if steps, err := List(filepath.Join(root, "direct")); err != nil || len(steps) != 1 || !steps[0].Foreign || steps[0].Step != 4 ||
		len(steps[0].Files) != 3 {
		t.Errorf("%+v: %v", steps, err)
	}
}

const restoresAlone = `
import sys, torch
from muster.checkpoint import ShardedCheckpointer
c = ShardedCheckpointer(sys.argv[1])
want = torch.load(sys.argv[1] + "/6.want", weights_only=False)
got = {"rows": torch.zeros_like(want["rows"]), "columns": torch.zeros_like(want["columns"]), "text": None}
assert c.load_checkpoint(got) and got["text"] == want["text"]
assert torch.equal(got["rows"], want["rows"]) and torch.equal(got["columns"], want["columns"])
print("restored", c.step, "from", c.source)
`

// Sharded states that memory has no room for are written by the workers, and are what is restored then.
func TestShardedWithoutMemory(t *testing.T) {
	t.Parallel()
	dir, store := filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "store")
	s, _ := testService(t, func(c *Config) { c.available = func() int64 { return 4 << 20 } })
	script := filepath.Join(t.TempDir(), "full.py")
	if err := os.WriteFile(script, []byte(`
import os, sys, torch, torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from muster.checkpoint import ShardedCheckpointer, StorageType
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
c = ShardedCheckpointer(sys.argv[1])
state = lambda n, value: {"x": distribute_tensor(torch.full((n,), value), mesh, [Shard(0)]), "value": value}
assert c.save_checkpoint(1, state(1 << 10, 1.0), storage_type=StorageType.MEMORY)
big = 4 << 20
assert c.save_checkpoint(2, state(big, 2.0), storage_type=StorageType.MEMORY) is False
assert c.save_checkpoint(3, state(big, 3.0))
assert c.save_checkpoint(4, state(big, 4.0), storage_type=StorageType.MEMORY) is False
assert c.save_checkpoint(5, state(big, 5.0))
got = state(big, 0.0)
assert c.load_checkpoint(got) and (c.step, c.source) == (5, "disk"), (c.step, c.source)
assert got["value"] == 5 and bool((got["x"].to_local() == 5).all())
dist.barrier()
print("done")
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runRanks(t, s.cfg.Socket, 2, script, dir, store); strings.Count(out, "done\n") != 2 ||
		!strings.Contains(out, "there is no memory") {
		t.Error(out)
	}
}

// Two ranks whose states have grown beyond memory are both told so: the second one does not wait for the first one's
// copy.
func TestNoMemoryForAll(t *testing.T) {
	dir := t.TempDir()
	s, _ := testService(t, func(c *Config) { c.available = func() int64 { return 1 << 20 } })
	a, b := dial(t, s).hello(dir, 0, 2), dial(t, s).hello(dir, 1, 2)
	a.save(1, 0, size, false)
	b.save(1, 1, size, false)
	for _, c := range []*client{a, b} {
		if rep, err := c.ask(request{Op: "begin", Step: 2, Size: 1 << 21, Persist: true}); err != nil || !rep.Full {
			t.Errorf("%+v: %v", rep, err)
		}
	}
}

// TestShardedByDLRover restores, on two ranks, what DLRover's own package wrote on one.
func TestShardedByDLRover(t *testing.T) {
	t.Parallel()
	dir, store := filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "store")
	env := append(os.Environ(), "PYTHONPATH="+testutil.PeerPackages(t, "dlrover"))
	if out, err := trainForks(t).Run(t.Context(), env, filepath.Join("testdata", "dlrover_fsdp.py"), dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s, _ := testService(t, nil)
	script := filepath.Join(t.TempDir(), "read.py")
	if err := os.WriteFile(script, []byte(`
import os, sys, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpCheckpointer
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=2)
c = FsdpCheckpointer(sys.argv[1])
rows = distribute_tensor(torch.zeros(4, 3), init_device_mesh("cpu", (2,)), [Shard(0)])
state = {"model": {"rows": rows}, "plain": torch.zeros(5, dtype=torch.int64), "step": 0}
dcp.load_state_dict(state_dict=state, storage_reader=c.get_storage_reader())
assert torch.equal(rows.full_tensor(), torch.arange(12.0).view(4, 3)) and torch.equal(state["plain"], torch.arange(5)), state
dist.barrier()
print("restored", state["step"])
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runRanks(t, s.cfg.Socket, 2, script, dir, store); strings.Count(out, "restored 7\n") != 2 {
		t.Error(out)
	}
}

// TestArchiveSize compares what Python says about the length of archives with where Go puts their ends.
func TestArchiveSize(t *testing.T) {
	testutil.Long(t)
	var small []zipEntry
	for i := range 70_000 {
		small = append(small, zipEntry{Name: "data/small" + strconv.Itoa(i), Size: 1})
	}
	cases := [][]zipEntry{
		{{Name: pickleName, Size: 0}},
		{{Name: pickleName, Size: 117}, {Name: "data/0", Size: 0}},
		{{Name: pickleName, Size: 4096}, {Name: "data/0", Size: 64}, {Name: "data/11", Size: 5}},
		{{Name: pickleName, Size: 3}, {Name: "data/0", Size: max32 - 1}, {Name: "data/1", Size: 1}},
		{{Name: pickleName, Size: 3}, {Name: "data/0", Size: max32}, {Name: "data/1", Size: 6 << 30}, {Name: "data/2", Size: 9}},
		append([]zipEntry{{Name: pickleName, Size: 3}}, small...),
		append([]zipEntry{{Name: pickleName, Size: 3}, {Name: "data/0", Size: max32 - 1}}, small...),
	}
	var sizes []int64
	var lists [][][2]any
	for _, entries := range cases {
		var list [][2]any
		w := []zipEntry{{}, {Name: archiveName + "byteorder", Size: 6}, {Name: archiveName + "version", Size: 2}}
		for i, e := range entries {
			list = append(list, [2]any{e.Name, e.Size})
			e.Name = archiveName + e.Name
			if i == 0 {
				w[0] = e
			} else {
				w = append(w, e)
			}
		}
		at, err := layoutZip(w)
		if err != nil {
			t.Fatal(err)
		}
		sizes, lists = append(sizes, at+int64(len(zipDirectory(w, at)))), append(lists, list)
	}
	text, err := json.Marshal(lists)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "size.py")
	script := "import json, sys\nfrom muster.checkpoint._files import archive_size\n" +
		"print([archive_size(records) for records in json.load(open(sys.argv[1]))])"
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".json", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(runRanksOf(t, torchForks(t), nil, "", 1, path, path+".json")),
		strings.ReplaceAll(fmt.Sprint(sizes), " ", ", "); got != want {
		t.Errorf("Python says %s, Go writes %s", got, want)
	}
}

package checkpointd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/python"
	"muster/internal/testutil"
	"muster/rendezvous"
)

// torchForks returns forks of a Python that has imported torch: scripts of this package start there.
func torchForks(t *testing.T) *testutil.Forks {
	t.Helper()
	return testutil.ForksOf(testutil.Torch(t), "torch.distributed.checkpoint,torch.distributed.fsdp,torch.distributed.tensor", "")
}

// trainForks returns forks of one of those that has imported what the first optimizer and the first DTensor do, for scripts that
// have one, and for forks that have imported more. It says at its end what it has not let go of.
func trainForks(t *testing.T) *testutil.Forks {
	t.Helper()
	return torchForks(t).With("torch._dynamo", "")
}

// runPython runs a script of testdata with our packages on its path.
func runPython(t *testing.T, socket, script string, args ...string) string {
	t.Helper()
	return runPythonIn(t, torchForks(t), socket, script, args...)
}

// runPythonIn is runPython in other forks.
func runPythonIn(t *testing.T, forks *testutil.Forks, socket, script string, args ...string) string {
	t.Helper()
	packages := t.TempDir()
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PYTHONPATH="+packages, "MUSTER_SOCKET="+socket, "RANK=0", "WORLD_SIZE=1", "LOCAL_WORLD_SIZE=1")
	out, err := forks.Run(t.Context(), env,
		append([]string{"-W", "error::UserWarning:muster", script}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestClient keeps states of all kinds through the real client, in memory and on disk.
func TestClient(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	s, log := testService(t, func(c *Config) { c.Workers = 1 })
	out := runPythonIn(t, trainForks(t), s.cfg.Socket, filepath.Join("testdata", "client.py"), dir)
	if !strings.Contains(out, "kept without muster") {
		t.Errorf("%s\n%s", out, log.String())
	}
	steps, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if err := s.Verify(); err != nil {
			t.Errorf("step %d: %v", s.Step, err)
		}
	}
}

// TestDeviceCopy has storages that say they are on devices copied: nothing is written but where they belong.
func TestDeviceCopy(t *testing.T) {
	if out := runPython(t, "", filepath.Join("testdata", "devices.py")); !strings.HasSuffix(out, "memory is scarce\n") {
		t.Error(out)
	}
}

// TestClientTrouble has the client meet what goes wrong, and use that goes on for longer than one would think.
func TestClientTrouble(t *testing.T) {
	t.Parallel()
	s, log := testService(t, func(c *Config) { c.Workers = 1 })
	out := runPython(t, s.cfg.Socket, filepath.Join("testdata", "client_trouble.py"), filepath.Join(t.TempDir(), "checkpoints"))
	if !strings.Contains(out, "mapped again") {
		t.Errorf("%s\n%s", out, log.String())
	}
}

// TestClientEnds: a worker ends right behind a save, while the memory for its next one is being mapped in the
// background. A thread that is in torch's code when the interpreter ends aborts the process, and the job would start it
// again.
func TestClientEnds(t *testing.T) {
	s, _ := testService(t, func(c *Config) { c.Workers = 1 })
	out := runPython(t, s.cfg.Socket, "-c", `
import sys, time, torch
from muster.checkpoint import Checkpointer
frombuffer = torch.frombuffer
def slowly(*args, **kwargs):
    until = time.monotonic() + 1
    while time.monotonic() < until:
        torch.ones(1 << 20).sum()
    return frombuffer(*args, **kwargs)
torch.frombuffer = slowly
Checkpointer(sys.argv[1], size_hint=1 << 20)
time.sleep(0.2)
print("ends")
`, filepath.Join(t.TempDir(), "checkpoints"))
	if out != "ends\n" {
		t.Error(out)
	}
}

// Where agents of torchrun take part workers write by themselves.
func TestClientDirect(t *testing.T) {
	s, _ := testService(t, func(c *Config) { c.Workers, c.Several, c.Token, c.Addr = 1, true, []byte("secret"), "127.0.0.1" })
	if err := s.BeginRound(t.Context(), rendezvous.Round{GroupWorldSize: 2}, nil, false); err != nil {
		t.Fatal(err)
	}
	script := `
import sys, torch
from muster.checkpoint import Checkpointer, StorageType
c = Checkpointer(sys.argv[1], size_hint=1 << 20)
assert not c.connected
assert c.save_checkpoint(1, {"x": torch.ones(9)}, storage_type=StorageType.MEMORY) is False
assert c.save_checkpoint(2, {"x": torch.ones(9)})
assert c.wait_latest_checkpoint() == 2
got = c.load_checkpoint()
assert (c.step, c.source) == (2, "disk") and torch.equal(got["x"], torch.ones(9)), (c.step, c.source)
print("done")
`
	path := filepath.Join(t.TempDir(), "direct.py")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runPython(t, s.cfg.Socket, path, filepath.Join(t.TempDir(), "checkpoints")); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

// A state that memory has no room for goes to disk while the training waits, and is what is restored then.
func TestClientWithoutMemory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	s, _ := testService(t, func(c *Config) { c.Workers, c.available = 1, func() int64 { return 1 << 20 } })
	script := `
import sys, torch
from muster.checkpoint import Checkpointer, StorageType
c = Checkpointer(sys.argv[1])
big = {"x": torch.ones(1 << 20)}
assert c.save_checkpoint(1, big, storage_type=StorageType.MEMORY) is False
assert c.save_checkpoint(2, {"x": torch.ones(100)}, storage_type=StorageType.MEMORY)
assert c.save_checkpoint(3, big, storage_type=StorageType.DISK)
got = c.load_checkpoint()
assert (c.step, c.source) == (3, "disk") and torch.equal(got["x"], big["x"]), (c.step, c.source)
print("done")
`
	path := filepath.Join(t.TempDir(), "full.py")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runPython(t, s.cfg.Socket, path, dir); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/checkpointd"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/test/drive"
)

var lossLine = regexp.MustCompile(`loss \d+ \d+ .*`)

// sameLosses fails the test unless two ranks have told the loss of each of 12 steps, the victim that of step 9 in both of
// its lives, and the same each time: everything that a step depends on was restored.
func sameLosses(t *testing.T, out string, victim int) {
	t.Helper()
	told := map[string][]string{} // by step and rank
	for _, line := range lossLine.FindAllString(out, -1) {
		at := strings.LastIndex(line, " ")
		told[line[:at]] = append(told[line[:at]], line[at+1:])
	}
	if again := told[fmt.Sprint("loss 9 ", victim)]; len(told) != 24 || len(again) != 2 {
		t.Errorf("losses of %d steps and ranks, and of step 9 %v\n%s", len(told), again, out)
	}
	for which, values := range told {
		if len(slices.Compact(values)) != 1 {
			t.Errorf("%s is one value in one life, and another in the next: %v", which, told[which])
		}
	}
}

// TestFlashCheckpoint kills the worker of a DDP job that saves, in the middle of training, when it has told the loss of a
// step that is not saved yet. It restores from memory the step before, finds the same loss again, goes on to the end, and leaves
// files that torch.load reads without muster.
func TestFlashCheckpoint(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	events := filepath.Join(t.TempDir(), "events.jsonl")
	got := drive.Run(t, []string{"VICTIM=0", "DIE=9"}, "run", "--ckpt", "on", "--warm", "auto", "--events", events, "-n", "2",
		"--max-restarts", "1", "--", testutil.Torch(t), "-u", drive.Script(t, "torch", "flash.py"), dir)
	if got.Status != 0 || strings.Count(got.Stdout, "restored 8 memory") != 2 {
		t.Fatalf("status %d, or not both ranks restored step 8 from memory\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if told := strings.Count(got.Stderr, "workers restore a checkpoint"); told != 1 {
		t.Errorf("it was told %d times\n%s", told, got.Stderr)
	}
	sameLosses(t, got.Stdout, 0)
	if types := drive.EventTypes(t, events); types[control.CheckpointCommitted] == 0 || types[control.CheckpointSaved] == 0 ||
		types[control.RendezvousCompleted] != 2 {
		t.Errorf("events: %v", types)
	}
	steps, err := checkpointd.List(dir)
	if err != nil || len(steps) == 0 || steps[0].Step != 12 {
		t.Fatalf("the last step is not on disk: %+v: %v", steps, err)
	}
	for _, s := range steps {
		if err := s.Verify(); err != nil {
			t.Errorf("step %d: %v", s.Step, err)
		}
	}
	read := drive.CommandOf(t, plainTorch(t), nil, "-c", `import sys, torch, zipfile
state = torch.load(sys.argv[1], weights_only=True)
assert state["step"] == 12 and len(state["optimizer"]["state"]) == 4, state.keys()
assert all(torch.equal(v, torch.load(sys.argv[1], mmap=True, weights_only=True)["model"][k]) for k, v in state["model"].items())
assert zipfile.ZipFile(sys.argv[1]).testzip() is None`, filepath.Join(dir, "checkpoint-12.pt"))
	if read.Status != 0 {
		t.Errorf("torch.load without muster: status %d\n%s", read.Status, read.Stderr)
	}
}

// TestFlashCheckpointStopped stops a job whose steps are in memory: SIGTERM has the newest written before muster ends,
// and nothing stays behind.
func TestFlashCheckpointStopped(t *testing.T) {
	t.Parallel()
	python, dir := testutil.Torch(t), filepath.Join(t.TempDir(), "checkpoints")
	j := drive.Start(t, []string{"LINGER=4", "MARK=" + dir},
		"run", "--ckpt", "on", "--warm", "auto", "-n", "2", "--grace", "1s", "--", python,
		"-u", drive.Script(t, "torch", "flash.py"), dir)
	testutil.Eventually(t, 2*time.Minute, "both workers are at step 4",
		func() bool { return strings.Count(j.Out.String(), "loss 4 ") == 2 })
	if steps, err := checkpointd.List(dir); err != nil || len(steps) != 0 {
		t.Fatalf("on disk already: %+v: %v", steps, err)
	}
	if err := j.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := j.End(); got.Status != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	steps, err := checkpointd.List(dir)
	if err != nil || len(steps) != 1 || steps[0].Step != 4 || steps[0].Verify() != nil {
		t.Fatalf("on disk: %+v: %v\n%s", steps, err, j.Err.String())
	}
	j.NothingLeft(dir)
}

// TestNoticesSave has steps that are saved to memory alone. A file, a command and a signal have each of them written
// while training goes on; the worker has no handler for the signal, and hears of the first notice by
// Checkpointer.preempted.
func TestNoticesSave(t *testing.T) {
	t.Parallel()
	python, dir := testutil.Torch(t), filepath.Join(t.TempDir(), "checkpoints")
	at := func(name string) string { return filepath.Join(filepath.Dir(dir), name) }
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	j := drive.Start(t, []string{"MARK=" + dir}, "run", "--ckpt-notices", "off", "--ckpt-dir", dir, "--ckpt-on-file", at("file"),
		"--ckpt-on-command", "test -e "+at("command"),
		"--ckpt-signal", "USR1", "--", python, "-u", drive.Script(t, "torch", "notices.py"), filepath.Dir(dir))
	for i, trigger := range []func(){
		func() { touch("file") }, func() { touch("command") },
		func() {
			if err := j.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
		},
	} {
		step := i + 1
		testutil.Eventually(t, 2*time.Minute, fmt.Sprintf("step %d is in memory", step), func() bool {
			return strings.Contains(j.Out.String(),
				fmt.Sprintf("kept %d preempted %v", step, map[bool]string{false: "False", true: "True"}[i > 0]))
		})
		if steps, err := checkpointd.List(dir); err != nil || len(steps) != i {
			t.Fatalf("on disk before the notice: %+v: %v\n%s", steps, err, j.Err.String())
		}
		trigger()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("step %d is on disk\n%s", step, j.Err.String()), func() bool {
			steps, err := checkpointd.List(dir)
			return err == nil && len(steps) == step && steps[0].Step == int64(step) && steps[0].Verify() == nil
		})
		touch(fmt.Sprint("next-", step))
	}
	got := j.End()
	if got.Status != 0 || !strings.Contains(got.Stdout, "end") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	for _, source := range []string{"file " + at("file"), "command test -e", "SIGUSR1"} {
		if !strings.Contains(got.Stderr, source) {
			t.Errorf("the log has no %s:\n%s", source, got.Stderr)
		}
	}
	j.NothingLeft(dir)
}

// TestInstalledDLRover has a package dlrover installed: scripts get that one, not ours, and rank 0 says so where its
// flash checkpoint is used.
func TestInstalledDLRover(t *testing.T) {
	t.Parallel()
	python, site := testutil.Torch(t), t.TempDir()
	flash := filepath.Join(site, "lib", "dlrover", "trainer", "torch", "flash_checkpoint")
	if err := os.MkdirAll(flash, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(flash, "ddp.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(site, "lib", "dlrover", "__init__.py"), []byte("who = 'installed'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Behind PYTHONPATH, as site-packages are.
	code := "import sys; sys.path.append('" + filepath.Join(site, "lib") + "'); import dlrover; print(dlrover.who, dlrover.__file__)"
	got := drive.Run(t, nil, "run", "--ckpt", "on", "--", python, "-c", code)
	if got.Status != 0 || !strings.Contains(got.Stdout, "installed "+site) {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if strings.Contains(got.Stderr, "flash checkpoint is that of the installed package") {
		t.Errorf("it was told of what nobody uses\n%s", got.Stderr)
	}
	got = drive.Run(t, nil, "run", "--ckpt", "on", "-n", "2", "--", python, "-c",
		code+"; import dlrover.trainer.torch.flash_checkpoint.ddp")
	if got.Status != 0 || strings.Count(got.Stderr,
		"flash checkpoint is that of the installed package, and muster keeps nothing of it; --ckpt-shim on") != 1 {
		t.Errorf("it was not told once: status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestCkptHorovod: workers of a fixed horovodrun, which have none of torch's variables, save by the ranks that
// Horovod's name: each its own shard, or under MUSTER_SOAK=1 rank 0 for all.
func TestCkptHorovod(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t)
	for shards, saved := range map[string][2]string{"1": {"True", "False"}, "world": {"True", "True"}} {
		if shards == "1" && !testutil.Soak() {
			continue
		}
		dir := filepath.Join(t.TempDir(), "checkpoints")
		args := append(drive.Warm("torch"), "--ckpt", "on", "horovodrun", "-np", "2", "-H", "localhost:2", python, "-c",
			`import os, sys, torch
from muster.checkpoint import Checkpointer, StorageType
shards = sys.argv[2]
checkpointer = Checkpointer(sys.argv[1], shards=shards if shards == "world" else int(shards))
assert checkpointer.load_checkpoint() == {}
done = checkpointer.save_checkpoint(1, {"rank": torch.tensor(checkpointer.rank)}, storage_type=StorageType.MEMORY)
print("rank", os.environ["HOROVOD_RANK"], "saved", done)`, dir, shards)
		got := drive.Run(t, nil, args...)
		for rank, done := range saved {
			if line := fmt.Sprint("rank ", rank, " saved ", done); got.Status != 0 || !strings.Contains(got.Stdout, line) {
				t.Errorf("%s: status %d, no %q\n%s%s", shards, got.Status, line, got.Stdout, got.Stderr)
			}
		}
		steps, err := checkpointd.List(dir)
		if err != nil || len(steps) != 1 || steps[0].Verify() != nil || len(steps[0].Files) != map[string]int{"1": 1, "world": 2}[shards] {
			t.Errorf("%s: on disk %+v: %v", shards, steps, err)
		}
	}
}

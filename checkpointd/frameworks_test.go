package checkpointd

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// verified makes sure that all steps of a directory of checkpoints are whole, and returns how many there are.
func verified(t *testing.T, dir string) int {
	t.Helper()
	steps, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if err := s.Verify(); err != nil {
			t.Errorf("%s of %s: %v", s.stepDir(), dir, err)
		}
	}
	return len(steps)
}

// trainerForks returns forks of a Python that has imported Trainer, and DeepSpeed where that is the peer, and the folders
// where they lie. Trainer's modules ask when they are imported whether there is DeepSpeed.
func trainerForks(t *testing.T, peer string) ([]string, *testutil.Forks) {
	t.Helper()
	folders, forks := []string{testutil.PeerPackages(t, "accelerate")}, trainForks(t)
	if peer == "deepspeed" {
		folders, forks = deepspeedForks(t)
	}
	return folders, forks.With("transformers.trainer", strings.Join(folders, ":"))
}

// deepspeedModules are what an engine imports when it begins.
const deepspeedModules = "torch._inductor.compile_fx,deepspeed.module_inject.auto_ep_layer"

// deepspeedForks returns forks of a Python that has imported DeepSpeed, and the folders where it lies, with accelerate.
func deepspeedForks(t *testing.T) ([]string, *testutil.Forks) {
	t.Helper()
	folders := []string{testutil.PeerPackages(t, "accelerate"), testutil.PeerPackages(t, "deepspeed")}
	return folders, trainForks(t).With("deepspeed,"+deepspeedModules, strings.Join(folders, ":"))
}

// TestDeepSpeed keeps engines without ZeRO and with its stages: they restore from memory, and what lies on disk is what
// DeepSpeed itself writes, reads, and makes whole models of.
func TestDeepSpeed(t *testing.T) {
	t.Parallel()
	folders, forks := deepspeedForks(t)
	dir := t.TempDir()
	s, log := testService(t, nil)
	out := runRanksOf(t, forks, folders, s.cfg.Socket, 2, filepath.Join("testdata", "engines.py"), dir,
		filepath.Join(t.TempDir(), "store"))
	for _, line := range []string{"zero 0", "zero 2", "zero 3", "without muster"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("not done: %s\n%s\n%s", line, out, log.String())
		}
	}
	for _, stage := range []int{0, 2, 3} {
		if n := verified(t, filepath.Join(dir, "zero"+strconv.Itoa(stage))); n != 2 {
			t.Errorf("%d steps on disk of stage %d", n, stage)
		}
	}
}

// TestTrainer has Hugging Face's Trainer train with DistributedDataParallel, and in a soak test with DeepSpeed: a training that
// goes on from memory ends with the same weights as one that was never stopped, and directories are what Trainer itself writes
// and reads.
func TestTrainer(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{"ddp": "accelerate"}
	if testutil.Soak() {
		kinds["deepspeed"] = "deepspeed"
	}
	for kind, peer := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, log := testService(t, nil)
			folders, forks := trainerForks(t, peer)
			out := runRanksOf(t, forks, folders, s.cfg.Socket, 2, filepath.Join("testdata", "trainer.py"), dir,
				filepath.Join(t.TempDir(), "store"), kind)
			for _, what := range []string{"restored from memory", "the same as Trainer's", "the best", "by hand", "without memory"} {
				if !strings.Contains(out, "done: "+what+"\n") {
					t.Errorf("not done: %s\n%s\n%s", what, out, log.String())
				}
			}
			for name, want := range map[string]int{"flash": 2, "best": 2, "hand": 1} {
				if n := verified(t, filepath.Join(dir, name)); n != want {
					t.Errorf("%d steps in %s", n, name)
				}
			}
		})
	}
}

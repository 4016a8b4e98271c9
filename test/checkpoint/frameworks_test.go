package checkpoint

import (
	"path/filepath"
	"strings"
	"testing"

	"muster/checkpointd"
	"muster/internal/testutil"
	"muster/test/drive"
)

// TestFlashFrameworks kills a worker of jobs with DeepSpeed and with Hugging Face's Trainer, after it has told the loss
// of a step and before it has saved that: both ranks go on from the step before, in memory, find the same loss again,
// and the last step is on disk in the end. That trainings of both end as those that were never stopped is tested in
// checkpointd, and the job with the Trainer runs under MUSTER_SOAK=1.
func TestFlashFrameworks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ peer, script, dir, warm string }{
		{
			"deepspeed", "zero.py", "global_step12", // the modules are what an engine imports when it begins
			"auto,torch._dynamo,torch._inductor.compile_fx,deepspeed.module_inject.auto_ep_layer",
		},
		{"accelerate", "hugging.py", "checkpoint-12", "auto"},
	} {
		if c.peer == "accelerate" && !testutil.Soak() {
			continue
		}
		t.Run(c.peer, func(t *testing.T) {
			python, dir := filepath.Join(testutil.Peer(t, c.peer), "python"), filepath.Join(t.TempDir(), "checkpoints")
			environ := []string{
				"VICTIM=1", "DIE=9", "DS_ACCELERATOR=cpu", "HF_HUB_OFFLINE=1", "PYTHONPATH=" + drive.Standins(t),
			}
			got := drive.Run(t, environ, "run", "--ckpt", "on", "-n", "2",
				"--max-restarts", "1", "--warm", c.warm, // an import of transformers takes six seconds of processor time
				"--", python, "-u", "-W", "ignore", drive.Script(t, "torch", c.script), dir)
			if got.Status != 0 || strings.Count(got.Stdout, "restored 8 memory") != 2 {
				t.Fatalf("status %d, or not both ranks restored step 8 from memory\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
			sameLosses(t, got.Stdout, 1)
			steps, err := checkpointd.List(dir)
			if err != nil || len(steps) < 3 || steps[0].Manifest.Dir != c.dir {
				t.Fatalf("the last step is not on disk: %+v: %v", steps, err)
			}
			for _, s := range steps {
				if err := s.Verify(); err != nil {
					t.Errorf("step %d: %v", s.Step, err)
				}
			}
		})
	}
}

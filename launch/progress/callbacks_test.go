package progress

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"muster/internal/python"
	"muster/internal/testutil"
)

// Hugging Face's Trainer tells its steps, its loss and its evaluation.
func TestTransformers(t *testing.T) {
	interpreter := filepath.Join(testutil.Peer(t, "accelerate"), "python")
	dir := t.TempDir()
	f := create(t, dir, nil)
	packages := filepath.Join(t.TempDir(), "python")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-c", `
import os, sys, torch
from transformers import Trainer, TrainingArguments, TrainerCallback
from muster.integrations.transformers import ProgressCallback
from muster import progress

class Data(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, i): return {"x": torch.ones(2) * i, "labels": torch.ones(1)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}

sections = []
class Look(TrainerCallback):
    def on_prediction_step(self, *args, **kwargs):
        f = progress._file
        sections.append(bytes(f._bytes[1024 + 48 * 16:1024 + 48 * 17]).rstrip(b"\0") if f._ints[16] else b"")

args = TrainingArguments(sys.argv[1], max_steps=10, per_device_train_batch_size=4, logging_steps=5, eval_strategy="steps", eval_steps=5,
                         use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
Trainer(Model(), args, train_dataset=Data(), eval_dataset=Data(), callbacks=[ProgressCallback(eval_timeout=900), Look()]).train()
assert sections and set(sections) == {b"eval"}, sections
`, t.TempDir())
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1", "MUSTER_RUN_DIR="+dir, "RANK=3",
		"ACCELERATE_USE_CPU=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, told := f.Read()
	values := map[string]float64{}
	for _, v := range r.Values {
		values[v.Name] = v.Number
	}
	if !told || r.Step != 10 || r.Total != 10 || r.Section != "" || values["loss"] <= 0 || values["eval_loss"] <= 0 ||
		values["learning_rate"] <= 0 {
		t.Errorf("%v %+v", told, r)
	}
	steps := uint64(0)
	for _, n := range r.Buckets {
		steps += n
	}
	if steps != 9 {
		t.Errorf("%d times of 10 steps", steps)
	}
}

// Lightning's hooks, by their documented names and arguments, tell steps, what was logged, and validation.
func TestLightning(t *testing.T) {
	testutil.Long(t)
	for _, module := range []string{"lightning/pytorch", "pytorch_lightning"} {
		dir := t.TempDir()
		f := create(t, dir, nil)
		fake := filepath.Join(t.TempDir(), module)
		if err := os.MkdirAll(fake, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"__init__.py": "", "callbacks.py": "class Callback: pass\n", "../__init__.py": ""} {
			if err := os.WriteFile(filepath.Join(fake, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		root := filepath.Dir(fake)
		if module != "pytorch_lightning" {
			root = filepath.Dir(root)
		}
		program(t, dir, 3, `
import sys
sys.path.insert(0, `+"'"+root+"'"+`)
from muster.integrations.lightning import ProgressCallback
from muster import progress
class Device: type = "cuda"
class OnDevice:
    device = Device()
    def __float__(self): raise SystemExit("the training waits")
class Trainer:
    global_step, estimated_stepping_batches = 0, 40
    logged_metrics = {"loss": 2.5, "far": OnDevice(), "n": 3.0}
c, trainer = ProgressCallback(eval_timeout=900), Trainer()
c.on_train_start(trainer, None)
for batch in range(8):  # two batches a step
    trainer.global_step = (batch + 1) // 2
    if trainer.global_step:
        c.on_train_batch_end(trainer, None, None, None, batch)
c.on_validation_start(trainer, None)
assert progress._file._ints[16]
c.on_validation_end(trainer, None)
c.on_validation_start(trainer, None)
c.on_exception(trainer, None, KeyError())
`)
		r, told := f.Read()
		if !told || r.Step != 4 || r.Total != 40 || len(r.Values) != 1 || r.Values[0] != (Value{"loss", 2.5}) || r.Section != "" ||
			time.Since(r.Told) > time.Hour {
			t.Errorf("%s: %v %+v", module, told, r)
		}
	}
}

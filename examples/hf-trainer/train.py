"""Trains a tiny GPT-2 with Hugging Face's Trainer. Each step is kept in memory, each fifth one goes to disk."""
import argparse
import os
import signal

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from muster.checkpoint.huggingface import FlashCkptTrainer
from muster.integrations.transformers import ProgressCallback

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--fail-at", type=int, help="rank 1 kills itself after this step, once: a rehearsal")
options = parser.parse_args()


class Fail(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and os.environ["RANK"] == "1" and state.global_step == options.fail_at:
            os.kill(os.getpid(), signal.SIGKILL)


def sample(seed):
    ids = torch.randint(0, 99, (12,), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


args = TrainingArguments(
    output_dir=options.output_dir, max_steps=12, save_steps=5, per_device_train_batch_size=2, learning_rate=1e-2,
    report_to=[], disable_tqdm=True, logging_steps=4, use_cpu=not torch.cuda.is_available(),
    dataloader_pin_memory=torch.cuda.is_available())
torch.manual_seed(0)
config = GPT2Config(vocab_size=99, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
trainer = FlashCkptTrainer(
    model=GPT2LMHeadModel(config), args=args, train_dataset=[sample(i) for i in range(64)], memory_steps=1,
    callbacks=[Fail(), ProgressCallback()])

newest = trainer.get_last_checkpoint()
if newest:
    print("goes on from", os.path.basename(newest), flush=True)
trainer.train(resume_from_checkpoint=newest)
trainer.wait_latest_checkpoint()

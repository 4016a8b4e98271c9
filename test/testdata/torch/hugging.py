"""Trains a tiny model with Hugging Face's Trainer and keeps it with DLRover's class: hugging.py DIRECTORY. VICTIM and DIE kill a
rank at a step of its first life."""
import os
import signal
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from dlrover.trainer.torch.flash_checkpoint.hf_trainer import FlashCkptTrainer

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


class Told(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):  # before the step is saved
        if "loss" in logs:
            print("loss", state.global_step, rank, logs["loss"], flush=True)
        if first and os.environ["DIE"] == str(state.global_step) and os.environ["VICTIM"] == str(rank):
            os.kill(os.getpid(), signal.SIGKILL)


data = [{"input_ids": (t := torch.randint(0, 99, (12,), generator=torch.Generator().manual_seed(i))), "labels": t} for i in range(64)]
torch.manual_seed(1 if first else 99)
model = GPT2LMHeadModel(GPT2Config(vocab_size=99, bos_token_id=None, eos_token_id=None, n_positions=16, n_embd=64, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir=sys.argv[1], max_steps=12, save_steps=5, logging_steps=1, learning_rate=1e-2, per_device_train_batch_size=2, report_to=[], disable_tqdm=True,
    use_cpu=True, ddp_backend="gloo", dataloader_pin_memory=False)
trainer = FlashCkptTrainer(model=model, args=args, train_dataset=data, callbacks=[Told()], memory_steps=1)
path = trainer.get_last_checkpoint()
if path:
    print("restored", path.rsplit("-", 1)[1], trainer.flash_checkpointer.async_save_engine.source, flush=True)
trainer.train(resume_from_checkpoint=path)

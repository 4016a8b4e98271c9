"""Trains a model with DeepSpeed's ZeRO 1 and keeps it with DLRover's calls: zero.py DIRECTORY. VICTIM and DIE kill a rank at a
step of its first life."""
import os
import signal
import sys

import deepspeed
import torch

from dlrover.trainer.torch.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo")
rank, directory = int(os.environ["RANK"]), sys.argv[1]
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(1 if first else 99)
net = torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.ReLU(), torch.nn.Linear(200, 8))
engine, *_ = deepspeed.initialize(
    model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
    config={"train_batch_size": 8, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True, "bf16": {"enabled": True}, "steps_per_print": 10**9})
ckpt = DeepSpeedCheckpointer(engine, directory)
path, state = ckpt.load_checkpoint(directory)
if path:
    assert state["step"] == engine.global_steps, state
    print("restored", engine.global_steps, ckpt.source, flush=True)
for step in range(engine.global_steps + 1, 13):
    torch.manual_seed(step * 2 + rank)
    loss = engine(torch.randn(4, 32, dtype=torch.bfloat16)).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    print("loss", step, rank, loss.item(), flush=True)
    if first and os.environ["DIE"] == str(step) and os.environ["VICTIM"] == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
    ckpt.save_checkpoint(directory, client_state={"step": step}, storage_type=StorageType.DISK if step % 5 == 0 else StorageType.MEMORY)

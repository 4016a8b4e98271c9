"""Trains with DeepSpeed's ZeRO 1 on CPUs. Each step is kept in memory, each fifth one goes to disk."""
import argparse
import os
import signal

import deepspeed
import torch
from torch import nn

from muster.checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)  # deepspeed gives it to each worker
parser.add_argument("--fail-at", type=int, help="rank 1 kills itself after this step, once: a rehearsal")
args = parser.parse_args()

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a module in C++ that would be compiled first
deepspeed.init_distributed(dist_backend="gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2), config={
    "train_batch_size": 8, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True}, "steps_per_print": 10**9})

checkpointer = DeepSpeedCheckpointer(engine)  # in the directory of --ckpt-dir
path, _ = checkpointer.load_checkpoint()
print(f"begins behind step {engine.global_steps}, from {checkpointer.source}", flush=True)
for step in range(engine.global_steps + 1, 13):
    inputs = torch.randn(4, 32, generator=torch.Generator().manual_seed(1000 * step + rank)).bfloat16()
    loss = engine(inputs).float().square().mean()
    engine.backward(loss)
    engine.step()
    where = StorageType.DISK if step % 5 == 0 else StorageType.MEMORY
    checkpointer.save_checkpoint(client_state={"step": step}, storage_type=where)
    torch.distributed.barrier()
    if step == args.fail_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
checkpointer.wait_latest_checkpoint()

"""Trains a model that FSDP2 has divided among the ranks. Each rank keeps its own part of every step in memory."""
import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from muster.checkpoint import ShardedCheckpointer, StorageType

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--fail-at", type=int, help="rank 1 kills itself after this step, once: a rehearsal")
args = parser.parse_args()

gpu = torch.cuda.is_available()
if gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cuda:nccl,cpu:gloo" if gpu else "gloo")
rank = dist.get_rank()
device = "cuda" if gpu else "cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state(step):
    parts = get_state_dict(model, optimizer)
    return {"model": parts[0], "optim": parts[1], "step": step}


checkpointer = ShardedCheckpointer()  # in the directory of --ckpt-dir
found, done = state(0), 0
if checkpointer.load_checkpoint(found):
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"])
    done = found["step"]
del found
print(f"begins behind step {done}, from {checkpointer.source}", flush=True)

for step in range(done + 1, args.steps + 1):
    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    where = StorageType.DISK if step % 10 == 0 else StorageType.MEMORY
    checkpointer.save_checkpoint(step, state(step), storage_type=where)
    dist.barrier()
    if step == args.fail_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)

checkpointer.wait_latest_checkpoint()
dist.barrier()
dist.destroy_process_group()

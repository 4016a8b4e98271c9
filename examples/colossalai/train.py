"""Trains a small network in the shape of Colossal-AI's scripts: launch_from_torch, then ranks from torch.distributed."""
import argparse
import os

import colossalai
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fail-at", type=int, help="rank 1 fails after this step, once: a rehearsal")
args = parser.parse_args()

colossalai.launch_from_torch(seed=0, verbose=False)  # NCCL on GPUs, gloo on CPUs
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
done = 0
if os.path.exists("checkpoint.pt"):  # a worker that is started again goes on from there
    kept = torch.load("checkpoint.pt")
    done = kept["step"]
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
if rank == 0:
    print(f"begins behind step {done} with {world} workers", flush=True)
for step in range(done + 1, 21):
    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 and rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.tmp")
        os.rename("checkpoint.tmp", "checkpoint.pt")
        print(f"step {step}", flush=True)
    dist.barrier()
    if step == args.fail_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise SystemExit(3)
dist.destroy_process_group()

"""Trains a small network with DistributedDataParallel, and goes on from its checkpoint after a crash."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--checkpoint", default="checkpoint.pt")
parser.add_argument("--fail-at", type=int, help="rank 1 fails after this step, once: a rehearsal")
args = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpu else "gloo")
rank = dist.get_rank()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

done = 0
if os.path.exists(args.checkpoint):
    state = torch.load(args.checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
parallel = DistributedDataParallel(model, device_ids=[device.index] if gpu else None)
if rank == 0:
    print(f"begins behind step {done} with {dist.get_world_size()} workers", flush=True)

for step in range(done + 1, args.steps + 1):
    # The batch of a step depends on the step and the rank alone, so that a repeated step is the same step.
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
    loss = (parallel(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)  # whole, or not there
        print(f"step {step}", flush=True)
    if step == args.fail_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)

dist.barrier()
dist.destroy_process_group()

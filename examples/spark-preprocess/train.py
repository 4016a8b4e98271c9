"""Trains a small model to guess the next token of an indexed data set, with DistributedDataParallel on CPUs."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import indexed

CONTEXT, BATCH = 8, 256

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the data set, without .bin")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
tokens, sizes = indexed.read(args.data)
size = int(tokens.max()) + 1
if rank == 0:
    print(f"{len(sizes)} documents, {len(tokens)} tokens, {world} workers", flush=True)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(size, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.ReLU(), nn.Linear(128, size)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(1, args.steps + 1):
    places = torch.randint(0, len(tokens) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step * world + rank))
    seen = torch.stack([torch.from_numpy(tokens[p:p + CONTEXT + 1].astype("int64")) for p in places.tolist()])
    loss = nn.functional.cross_entropy(model(seen[:, :-1]), seen[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step in (1, args.steps):
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
if rank == 0 and loss.item() > 6:
    raise SystemExit("the model has learned nothing")
dist.destroy_process_group()

"""Adds up rank+1 of all workers, at a store that is named in full. Rank 1 fails in round 0."""

import os
import sys

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
if os.environ["MUSTER_ROUND"] == "0" and rank == 1:
    os._exit(3)
dist.barrier()
print(f"sum {total.item()} in round {os.environ['MUSTER_ROUND']}", flush=True)
dist.barrier()
sys.stdout.flush()
os._exit(0)

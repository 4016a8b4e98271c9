"""Each rank has a state of its own, which says its step in every number, and saves it to memory at each step."""
import os
import sys
import time

import torch
import torch.distributed as dist

import life
from muster.checkpoint import Checkpointer, StorageType

out, steps = sys.argv[1], int(sys.argv[2])
life.begin(out)
dist.init_process_group("gloo")
rank = dist.get_rank()
ckpt = Checkpointer(os.path.join(out, "ckpt"), shards="world")
state = ckpt.load_checkpoint()
first = 1
if state:
    assert torch.equal(state["weights"], torch.full((50_000,), float(ckpt.step) * 100 + rank)), (rank, ckpt.step, state["weights"][0])
    first = ckpt.step + 1
print(f"restored {ckpt.step} {ckpt.source} rank {rank}", flush=True)


def may_go():
    try:
        with open(os.path.join(out, "hold")) as file:
            return step <= int(file.read() or 0)
    except FileNotFoundError:
        return True


for step in range(first, steps + 1):
    while not may_go():
        time.sleep(0.02)
    dist.all_reduce(torch.ones(1))
    kept = ckpt.save_checkpoint(step, {"weights": torch.full((50_000,), float(step) * 100 + rank)}, storage_type=StorageType.MEMORY)
    assert kept, step
    dist.barrier()  # progress says that all ranks have saved
    if rank == 0:
        with open(os.path.join(out, "progress"), "a") as file:
            file.write(f"{time.time()} 0 {step}\n")
    time.sleep(0.05)

"""Steps with paths of their own: places.py DIRECTORY STEP RANK WORLD. Prints what was found, and saves a step unless it is 0."""
import os
import sys

import torch

from muster.checkpoint import Checkpointer, StorageType

directory, step, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
if world > 1 and step:
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}.store{step}", rank=rank, world_size=world)
ckpt = Checkpointer(directory, shards=world)
state = ckpt.load_checkpoint()
assert not state or torch.equal(state["weights"], torch.full((1000,), float(100 * ckpt.step + rank))), state
print(f"found {ckpt.step} {ckpt.source}", flush=True)
if step:
    state = {"weights": torch.full((1000,), float(100 * step + rank))}
    path = os.path.join(directory, f"checkpoint-{step}-{rank}.pt")
    assert ckpt.save_checkpoint(step, state, path, storage_type=StorageType.DISK)
    assert world > 1 or ckpt.wait_latest_checkpoint(60) == step
    if world > 1:
        torch.distributed.destroy_process_group()  # else its threads may meet the end of the process

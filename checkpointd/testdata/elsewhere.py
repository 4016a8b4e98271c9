"""A rank of two on nodes of their own: elsewhere.py DIRECTORY STORE. It saves a divided tensor to memory, makes the file STORE.saved.RANK, and
restores that in the next round, which has begun when there is a file STORE.again: whole, and divided along its columns."""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh, zeros

from muster.checkpoint import ShardedCheckpointer, StorageType

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
want = torch.arange(48.0).reshape(8, 6)
ckpt = ShardedCheckpointer(sys.argv[1])
assert ckpt.save_checkpoint(7, {"rows": distribute_tensor(want, mesh, [Shard(0)]), "step": 7}, storage_type=StorageType.MEMORY)
ckpt._link.settle()
open(f"{sys.argv[2]}.saved.{rank}", "w").close()
while not os.path.exists(sys.argv[2] + ".again"):
    time.sleep(0.02)

ckpt = ShardedCheckpointer(sys.argv[1])
state = {"rows": torch.zeros(8, 6), "step": 0}
assert ckpt.load_checkpoint(state) and torch.equal(state["rows"], want) and state["step"] == 7, state
print("restored", ckpt.step, "from", ckpt.source, flush=True)
state = {"rows": zeros(8, 6, device_mesh=mesh, placements=[Shard(1)]), "step": 0}
assert ckpt.load_checkpoint(state) and torch.equal(state["rows"].full_tensor(), want), state
dist.barrier()
dist.destroy_process_group()

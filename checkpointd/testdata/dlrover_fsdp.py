"""Leaves a step as DLRover's own package does, whose saver writes what its writer has put into shared memory: run with that package
as dlrover_fsdp.py DIRECTORY."""
import os
import pickle
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dlrover.trainer.torch.flash_checkpoint.fsdp_engine import SharedMemoryWriter
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


class Memory:
    """Stands for its agent's memory."""

    shared_memory = buf = None

    def no_checkpoint_state(self):
        return True

    def init_shared_memory(self, create, size):
        self.shared_memory, self.buf = self, bytearray(size)


dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=0, world_size=1)
rows = distribute_tensor(torch.arange(12.0).view(4, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
writer = SharedMemoryWriter(Memory())
dcp.save_state_dict({"model": {"rows": rows}, "plain": torch.arange(5), "step": 7}, storage_writer=writer)
step = os.path.join(sys.argv[1], "7")
os.makedirs(step)
with open(os.path.join(step, writer.file_name), "wb") as f:
    f.write(writer.shm_handler.buf)
with open(os.path.join(step, ".metadata"), "wb") as f:
    pickle.dump(writer.metadata["dcp_metadata"], f)
with open(os.path.join(sys.argv[1], "dlrover_latest.txt"), "w") as f:
    f.write("7")

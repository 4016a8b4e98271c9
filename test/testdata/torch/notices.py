"""Saves steps to memory alone, and goes on with the next one when a file says so: what is on disk is there by a notice."""
import os
import sys
import time

import torch
from muster.checkpoint import Checkpointer, StorageType

checkpointer = Checkpointer()
for step in 1, 2, 3:
    checkpointer.save_checkpoint(step, {"step": step, "weights": torch.full((1000,), step)}, storage_type=StorageType.MEMORY)
    print("kept", step, "preempted", checkpointer.preempted, flush=True)
    while not os.path.exists(os.path.join(sys.argv[1], f"next-{step}")) or not checkpointer.preempted:
        time.sleep(0.01)
print("end")

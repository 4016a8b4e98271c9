"""The guide's script for DistributedDataParallel: steps go to memory, every tenth to a path of its own on disk. The calls are the
guide's; what is around them makes it a program that ends, and rank $VICTIM die after a step once."""
import os
import signal
import sys

import torch
import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "torch"))
import uncompiled

checkpoint_dir, steps = sys.argv[1], int(sys.argv[2])
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK") or 0)
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
model = DDP(model) if dist.is_initialized() else model
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

checkpointer = DdpCheckpointer(checkpoint_dir)
state = checkpointer.load_checkpoint()
start = 0
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
source = checkpointer._checkpointer.source if hasattr(checkpointer, "_checkpointer") else "none"
print(f"rank {rank} begins behind step {start} from {source}", flush=True)

loss = torch.zeros(())  # of a worker that is started again when all is done
for step in range(start + 1, steps + 1):
    torch.manual_seed(step)
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    if step % 10 == 0:
        path = os.path.join(checkpoint_dir, f"checkpoint-{step}.pt")
        checkpointer.save_checkpoint(step, state, path, storage_type=StorageType.DISK)
    else:
        checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
    if dist.is_initialized():
        dist.barrier()
    died = checkpoint_dir + ".died"
    if os.environ.get("VICTIM") == f"{rank}@{step}" and not os.path.exists(died):
        with open(died, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} ends with loss {loss.item():.9f}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()

"""The guide's script for FSDP: its calls, of the generation that gives states and readers. See ddp.py."""
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpShardCheckpointer, StorageType
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "torch"))
import uncompiled

checkpoint_dir, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = FSDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)), device_id=torch.device("cpu"))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

checkpointer = FsdpShardCheckpointer(checkpoint_dir)
start = 0
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    reader = checkpointer.get_storage_reader()
    if reader:
        state = {"model": model.state_dict(), "step": 0}
        dist_cp.load_state_dict(state_dict=state, storage_reader=reader)
        model.load_state_dict(state["model"])
        start = state["step"]
        optim = load_sharded_optimizer_state_dict(model_state_dict=state["model"], optimizer_key="optim", storage_reader=reader)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim["optim"]))
source = checkpointer._checkpointer.source if hasattr(checkpointer, "_checkpointer") else "none"
print(f"rank {rank} begins behind step {start} from {source}", flush=True)

loss = torch.zeros(())  # of a worker that is started again when all is done
for step in range(start + 1, steps + 1):
    torch.manual_seed(100 * step + rank)
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer), "step": step}
        path = os.path.join(checkpoint_dir, str(step))
        checkpointer.save_checkpoint(step, state, path, storage_type=StorageType.DISK if step % 10 == 0 else StorageType.MEMORY)
    dist.barrier()
    died = checkpoint_dir + ".died"
    if os.environ.get("VICTIM") == f"{rank}@{step}" and not os.path.exists(died):
        with open(died, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} ends with loss {loss.item():.9f}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()

"""FSDP2 on gloo, with our own checkpoints of sharded states. Rank VICTIM kills itself at step DIE of the first attempt, before it
saves that. Prints the losses."""
import os
import signal
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from muster.checkpoint import ShardedCheckpointer, StorageType

torch.distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(32, 65), torch.nn.Tanh(), torch.nn.Linear(65, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpointer = ShardedCheckpointer(sys.argv[1])


def state(step):
    parts = get_state_dict(model, optimizer)
    return {"model": parts[0], "optim": parts[1], "step": step}


start = 0
found = state(0)
if checkpointer.load_checkpoint(found):
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"])
    start = found["step"]
    print("restored", start, checkpointer.source, flush=True)
for step in range(start + 1, 13):
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step * 10 + rank))
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if str(rank) == os.environ.get("VICTIM") and str(step) == os.environ.get("DIE") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print(f"loss {step} {rank} {loss.item():.12g}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.save_checkpoint(step, state(step), storage_type=StorageType.DISK if step % 5 == 0 else StorageType.MEMORY)
    torch.distributed.barrier()
    print(f"loss {step} {rank} {loss.item():.12g}", flush=True)
full = {key: value.full_tensor() for key, value in model.state_dict().items()}
if rank == 0:
    torch.save(full, sys.argv[1] + ".want")
torch.distributed.barrier()

"""DistributedDataParallel on gloo, with DLRover's flash checkpoint, which muster keeps: the guide's example. Rank VICTIM kills
itself at step DIE of the first attempt, before it saves that. Prints the losses."""
import os
import signal
import sys

import torch
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
from torch.nn.parallel import DistributedDataParallel

import uncompiled

torch.distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpointer = DdpCheckpointer(sys.argv[1])

start = 0
state = checkpointer.load_checkpoint()
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    start = state["step"]
    print("restored", start, checkpointer._checkpointer.source, flush=True)
for step in range(start + 1, 13):
    generator = torch.Generator().manual_seed(step * 10 + rank)
    x = torch.randn(16, 32, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if str(rank) == os.environ.get("VICTIM") and str(step) == os.environ.get("DIE") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print(f"loss {step} {rank} {loss.item():.12g}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": step}
    kind = StorageType.DISK if step % 5 == 0 else StorageType.MEMORY
    checkpointer.save_checkpoint(step, state, os.path.join(sys.argv[1], f"checkpoint-{step}.pt"), storage_type=kind)
    torch.distributed.barrier()
    print(f"loss {step} {rank} {loss.item():.12g}", flush=True)
    if str(step) == os.environ.get("LINGER"):
        signal.pause()
checkpointer.wait_latest_checkpoint()
torch.distributed.barrier()

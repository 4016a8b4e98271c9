"""FullyShardedDataParallel on gloo, with DLRover's flash checkpoint by the calls of its older releases: the guide's example. Rank 1
kills itself at step 5 of the first attempt. What the model is in the end lies in DIRECTORY.want."""
import os
import signal
import sys

import torch
import torch.distributed.checkpoint as dist_cp
from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpShardCheckpointer, StorageType
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

import uncompiled

torch.distributed.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint_dir = sys.argv[1]
checkpointer = FsdpShardCheckpointer(checkpoint_dir)


def load_checkpoint():
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {"model": model.state_dict(), "step": 0}
        storage_reader = checkpointer.get_storage_reader()
        if not storage_reader:
            return 0
        dist_cp.load_state_dict(state_dict=state_dict, storage_reader=storage_reader)
        model.load_state_dict(state_dict["model"])
        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=state_dict["model"], optimizer_key="optim", storage_reader=storage_reader)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim_state["optim"]))
        print("restored", state_dict["step"], checkpointer._checkpointer.source, flush=True)
        return state_dict["step"]


for step in range(load_checkpoint() + 1, 9):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 10 + rank))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer), "step": step}
        ckpt_dir = os.path.join(checkpoint_dir, str(step))
        kind = StorageType.DISK if step % 3 == 0 else StorageType.MEMORY
        checkpointer.save_checkpoint(step, state_dict, ckpt_dir, storage_type=kind)
    torch.distributed.barrier()
    if step == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    full = model.state_dict()
if rank == 0:
    torch.save(full, checkpoint_dir + ".want")
torch.distributed.barrier()

"""Checkpoints that cost a memory copy.

    from muster.checkpoint import Checkpointer, StorageType

    ckpt = Checkpointer("/data/ckpt")
    state = ckpt.load_checkpoint()          # {} where there is none
    ckpt.save_checkpoint(step, {"model": model.state_dict(), "step": step}, storage_type=StorageType.MEMORY)
    ckpt.save_checkpoint(step, {"model": model.state_dict(), "step": step}, storage_type=StorageType.DISK)
    ckpt.wait_latest_checkpoint()

ShardedCheckpointer does the same for states that are divided over the ranks (FSDP, DTensor).

The state is anything that torch.save takes. It is copied to memory that muster owns, and that outlives the worker; muster
writes it to disk behind the training as a file that torch.load reads. Without muster, steps for the disk are written at
once, and those for memory are not kept.
"""
import muster

if getattr(muster, "DISTRIBUTION", None) != "muster-launch":  # the other project's file was installed over ours
    raise ImportError(f"the package muster in {getattr(muster, '__file__', None)} is another project's, which has the same name: "
                      "pip uninstall muster, then pip install --force-reinstall muster-launch", name="muster")
try:
    import torch  # noqa: F401
except ModuleNotFoundError as err:
    if err.name != "torch":
        raise
    raise ModuleNotFoundError("No module named 'torch': muster.checkpoint saves what PyTorch trains: install PyTorch for this Python",
                              name="torch") from None
if not hasattr(torch.Tensor, "untyped_storage"):  # it came with 2.0
    raise ImportError(f"muster.checkpoint needs PyTorch 2.0 or newer, and this Python has {torch.__version__}: install a newer one",
                      name="torch")

from ._checkpointer import Checkpointer, StorageType
from ._files import Archive, Bytes
from ._safetensors import safetensors_file

__all__ = ["Archive", "Bytes", "Checkpointer", "ShardedCheckpointer", "StorageType", "safetensors_file"]


def __getattr__(name):
    if name == "ShardedCheckpointer":  # torch.distributed.checkpoint takes its time to import
        from ._sharded import ShardedCheckpointer

        return ShardedCheckpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

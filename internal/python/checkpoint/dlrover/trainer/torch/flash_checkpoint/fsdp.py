import collections.abc

import torch
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from dlrover.python.common.storage import rules_of
from dlrover.trainer.torch.flash_checkpoint.checkpointer import Checkpointer
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from muster.checkpoint import ShardedCheckpointer, StorageType
from muster.checkpoint._checkpointer import unread

__all__ = ["FsdpCheckpointer", "FsdpFullCheckpointer", "FsdpShardCheckpointer", "StorageType"]

_SHARDED = (StateDictType.SHARDED_STATE_DICT,)
_FULL = StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False), FullOptimStateDictConfig(rank0_only=False)


def _states(model, optimizer, kind):
    """Returns the states of a model and its optimizer: FSDP's, or those of a model that fully_shard was applied to."""
    if not FSDP.fsdp_modules(model):
        return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=kind is _FULL))
    with FSDP.state_dict_type(model, *kind):
        return model.state_dict(), FSDP.optim_state_dict(model, optimizer)


def _load(model, optimizer, kind, model_state, optimizer_state):
    if not FSDP.fsdp_modules(model):
        options = StateDictOptions(full_state_dict=kind is _FULL)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=options)
        return
    with FSDP.state_dict_type(model, *kind):
        model.load_state_dict(model_state)
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optimizer_state))


class FsdpShardCheckpointer(Checkpointer):
    """DLRover's checkpointer for FSDP's sharded states, kept by muster, with the calls of both its generations.

    Up to version 0.3.5 the second argument was a storage, and states were given as dicts; since then models and optimizers are.
    """

    def __init__(self, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600, storage=None):
        rules = rules_of(deletion_strategy, storage if isinstance(comm_backend, str) else comm_backend)
        unread(comm_backend, save_timeout)
        self.checkpoint_dir = checkpoint_dir
        self._checkpointer = ShardedCheckpointer(checkpoint_dir, **rules)

    def save_checkpoint(self, step, *args, **kwargs):
        """save_checkpoint(step, state_dict, path, storage_type=DISK), of states made in a block of FSDP.state_dict_type, or
        save_checkpoint(step, model, optimizer, extra_sd={}, path="", storage_type=DISK)."""
        old = isinstance(args[0], collections.abc.Mapping) if args else "state_dict" in kwargs
        return (self._save_state if old else self._save_model)(step, *args, **kwargs)

    def _save_state(self, step, state_dict, path="", storage_type=StorageType.DISK):
        return self._checkpointer.save_checkpoint(step, state_dict, path, storage_type)

    def _save_model(self, step, model, optimizer, extra_sd={}, path="", storage_type=StorageType.DISK):
        model_state, optimizer_state = _states(model, optimizer, _SHARDED)
        return self._save_state(step, {"model": model_state, "optim": optimizer_state, "step": step, **extra_sd}, path, storage_type)

    def get_storage_reader(self, resume_path=""):
        """Returns a reader of the newest step in memory, else of resume_path, else of the newest on disk; None where there is none."""
        return self._checkpointer.reader(resume_path)

    def load_checkpoint(self, model, optimizer, resume_path=""):
        """Loads model and optimizer. Returns what else there is of the newest step, among it "step"; {} where there is none."""
        reader = self.get_storage_reader(resume_path)
        if reader is None:
            return {}
        metadata, state = reader.read_metadata(), {}
        for key, about in metadata.state_dict_metadata.items():
            path = metadata.planner_data[key]
            if path[0] not in ("model", "optim"):
                set_element(state, path, torch.empty(about.size, dtype=about.properties.dtype) if hasattr(about, "size") else None)
        if not FSDP.fsdp_modules(model):
            state["model"], state["optim"] = _states(model, optimizer, _SHARDED)
            dist_cp.load(state, storage_reader=reader)
            _load(model, optimizer, _SHARDED, state.pop("model"), state.pop("optim"))
            return state
        with FSDP.state_dict_type(model, *_SHARDED):  # its optimizer has a state after its first step only
            state["model"] = model.state_dict()
            dist_cp.load(state, storage_reader=reader)
            found = load_sharded_optimizer_state_dict(model_state_dict=state["model"], optimizer_key="optim", storage_reader=reader)
        _load(model, optimizer, _SHARDED, state.pop("model"), found["optim"])
        return state

    def wait_latest_checkpoint(self, timeout=1800):
        return self._checkpointer.wait_latest_checkpoint(timeout)


FsdpCheckpointer = FsdpShardCheckpointer


class FsdpFullCheckpointer(Checkpointer):
    """DLRover's checkpointer for FSDP's full states, which all ranks gather and rank 0 saves."""

    def __init__(self, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600):
        unread(comm_backend, save_timeout)
        self.checkpoint_dir = checkpoint_dir
        self._checkpointer = DdpCheckpointer(checkpoint_dir, deletion_strategy=deletion_strategy)

    def save_checkpoint(self, step, model, optimizer, extra_sd={}, path="", storage_type=StorageType.DISK):
        model_state, optimizer_state = _states(model, optimizer, _FULL)
        state = {"model": model_state, "optimizer": optimizer_state, **extra_sd}
        return self._checkpointer.save_checkpoint(step, state, path, storage_type)

    def load_checkpoint(self, model, optimizer, resume_path=""):
        """Loads model and optimizer. Returns what else there is of the newest step, {} where there is none."""
        state = dict(self._checkpointer.load_checkpoint(resume_path))
        if state:
            _load(model, optimizer, _FULL, state.pop("model"), state.pop("optimizer"))
        return state

    def wait_latest_checkpoint(self, timeout=1800):
        return self._checkpointer.wait_latest_checkpoint(timeout)

"""Checkpoints of DeepSpeed engines.

    from muster.checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

    ckpt = DeepSpeedCheckpointer(engine, "/data/ckpt")
    path, client_state = ckpt.load_checkpoint()      # (None, None) where there is none
    ckpt.save_checkpoint(client_state={"epoch": 3}, storage_type=StorageType.MEMORY)

All ranks call these methods, as DeepSpeed's own. What lies on disk is what DeepSpeed writes, and reads without muster.
"""
import copy
import os
import re
import tempfile

import torch.distributed as dist

from . import _direct
from ._checkpointer import Checkpointer, StorageType, log
from ._collect import MANIFEST, AsyncCheckpointAgent, anywhere, gathered

__all__ = ["AsyncCheckpointAgent", "DeepSpeedCheckpointer", "StorageType"]


class DeepSpeedCheckpointer:
    """Saves and restores an engine of DeepSpeed with ZeRO of any stage or none.

    directory is where engine.save_checkpoint would save to. The other arguments are those of Checkpointer. step and
    source say, after a load, what was restored: its step or -1, and "memory", "disk" or "none".
    """

    def __init__(self, engine, directory=None, *, keep=0, keep_every=0, size_hint=0, strategy=None, replicas=0):
        if not hasattr(engine, "checkpoint_engine"):
            raise TypeError(f"cannot keep checkpoints of a {type(engine).__name__}: give the engine that deepspeed.initialize returned")
        if engine.zero_nvme_offload_optimizer():
            raise ValueError("cannot keep checkpoints of an optimizer that is offloaded to NVMe: DeepSpeed copies its files itself; use engine.save_checkpoint")
        self.engine = engine
        # DeepSpeed knows itself with how many ranks a step can be restored.
        self._checkpointer = Checkpointer(
            directory, shards="world", keep=keep, keep_every=keep_every, size_hint=size_hint, reshards=True, strategy=strategy, replicas=replicas)
        self.directory = self._checkpointer.directory
        self.step, self.source = -1, "none"

    def save_checkpoint(self, save_dir=None, tag=None, client_state=None, save_latest=True, storage_type=StorageType.DISK, **options):
        """Keeps the engine's state, and returns when the copy is made; False where nothing was kept.

        tag names the step's directory, "global_step<n>" by default, and is its number where it is one or ends like this; other
        tags are of step engine.global_steps. The options are those of engine.save_checkpoint.
        """
        tag = f"global_step{self.engine.global_steps}" if tag is None else str(tag)
        root = os.path.join(self._own(save_dir), tag)
        if os.path.dirname(root) != self.directory:
            raise ValueError(f"cannot save to {root}: a step's directory has to lie right in {self.directory}")
        number = re.fullmatch(r"(?:global_step)?(\d+)", tag)
        step = int(number[1]) if number else self.engine.global_steps
        persist, trackers = storage_type == StorageType.DISK, [("latest", tag)] if save_latest else []
        if not self._checkpointer.connected:
            if not persist:
                return self._checkpointer.save_files(step, {}, tag, storage_type=storage_type)  # which says why not
            return self._save_directly(step, tag, client_state, save_latest, options)
        agent = AsyncCheckpointAgent(root=root, engine=self.engine.checkpoint_engine)
        self.engine.checkpoint_engine = agent
        try:
            self.engine.save_checkpoint(self.directory, tag, client_state or {}, False, **options)
        finally:
            self.engine.checkpoint_engine = agent.engine
        kept = full = False
        try:
            kept = self._checkpointer.save_files(step, agent.files, tag, trackers, storage_type)
        except MemoryError as e:
            full = True
            log.warning("step %d is not kept: %s", step, e)
        if not persist or not anywhere(full):
            return kept
        self.wait_latest_checkpoint()
        return self._save_directly(step, tag, client_state, save_latest, options)

    def _save_directly(self, step, tag, client_state, save_latest, options):
        """Has DeepSpeed write a step, while the training waits."""
        self.engine.save_checkpoint(self.directory, tag, client_state or {}, save_latest, **options)
        if dist.get_rank() == 0 and save_latest:
            _direct.track(self.directory, step)
        self._checkpointer.wrote(step)
        return True

    def load_checkpoint(self, load_dir=None, tag=None, load_module_strict=True, load_optimizer_states=True, load_lr_scheduler_states=True,
                        load_module_only=False, custom_load_fn=None):
        """Restores the newest step, or that of a tag, from memory or from disk. Returns its path and the client state, or
        (None, None) where there is none. Another directory than the checkpointer's is left to DeepSpeed."""
        options = {
            "load_module_strict": load_module_strict, "load_optimizer_states": load_optimizer_states,
            "load_lr_scheduler_states": load_lr_scheduler_states, "load_module_only": load_module_only, "custom_load_fn": custom_load_fn,
        }
        self.step, self.source = -1, "none"
        if load_dir is not None and os.path.abspath(load_dir) != self.directory or self.engine.load_universal_checkpoint() or not self._checkpointer.connected:
            return self._from_disk(load_dir or self.directory, tag, options, -1)
        found = self._checkpointer.load_files()
        if found.source == "memory" and (tag is None or str(tag) == found.directory):
            result = self._from_memory(found, options)
            self.step, self.source = found.step, "memory"
            return result
        if tag is None and found.source == "disk" and not foreign(self.directory, "latest"):
            return self._from_disk(self.directory, os.path.basename(found.root), options, found.step)
        if tag is not None and not os.path.isdir(os.path.join(self.directory, str(tag))):
            self.wait_latest_checkpoint()  # it may be on its way there
        return self._from_disk(self.directory, tag, options, -1)

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until all that was saved for the disk is there, and returns the newest step that is; as that of Checkpointer."""
        return self._checkpointer.wait_latest_checkpoint(timeout)

    def _own(self, directory):
        directory = self.directory if directory is None else os.path.abspath(os.fspath(directory))
        if directory != self.directory:
            raise ValueError(f"cannot save to {directory}: this checkpointer's directory is {self.directory}; make another one")
        return directory

    def _from_disk(self, directory, tag, options, step):
        path, client_state = self.engine.load_checkpoint(directory, None if tag is None else str(tag), **options)
        if path is not None:
            self.step, self.source = step if step >= 0 else self.engine.global_steps, "disk"
        return path, client_state

    def _from_memory(self, found, options):
        """Has DeepSpeed load from a directory in which the files of all ranks are to be found, and nothing in them."""
        names = sum(gathered(found.names), [])
        # A model of ZeRO 3 without its optimizer is put together by a tool that opens the files itself.
        whole = self.engine.zero_optimization_stage() == 3 and not options["load_optimizer_states"]
        with tempfile.TemporaryDirectory(prefix="muster-") as scratch:
            root = os.path.join(scratch, found.directory)
            agent = AsyncCheckpointAgent(root=root, found=found, engine=self.engine.checkpoint_engine)
            agent.lay_out(names, names if whole else (), 1 << 62)
            if whole:
                with open(os.path.join(scratch, "latest"), "w") as f:
                    f.write(found.directory)
            self.engine.checkpoint_engine = agent
            try:
                path, client_state = self.engine.load_checkpoint(scratch, found.directory, **options)
            finally:
                self.engine.checkpoint_engine = agent.engine
        if path is None:
            raise RuntimeError(f"DeepSpeed found nothing to restore in step {found.step} of {self.directory}, which lies in memory")
        client_state = copy.deepcopy(client_state)  # of its own: memory that is looked at is not used for other steps
        for optimizer in (self.engine.optimizer, getattr(self.engine.optimizer, "optimizer", None)):
            if hasattr(optimizer, "state"):
                found.give(optimizer)
        return os.path.join(self.directory, os.path.relpath(path, scratch)), client_state


def foreign(directory, tracker):
    """Whether a tracker names a step that somebody else wrote: muster's are followed by it."""
    try:
        with open(os.path.join(directory, tracker)) as f:
            step = os.path.join(directory, f.read().strip())
    except OSError:
        return False
    return os.path.isdir(step) and not os.path.exists(os.path.join(step, MANIFEST))

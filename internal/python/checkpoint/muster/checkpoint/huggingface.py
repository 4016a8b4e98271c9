"""Checkpoints of Hugging Face's Trainer.

    from muster.checkpoint.huggingface import FlashCkptTrainer

    trainer = FlashCkptTrainer(model=model, args=args, train_dataset=data)
    trainer.train(resume_from_checkpoint=trainer.get_last_checkpoint())
    trainer.wait_latest_checkpoint()

What lies in output_dir/checkpoint-<step> is what Trainer writes: Trainer and AutoModel.from_pretrained read it without muster.
"""
import os
import re
import shutil
import tempfile

import torch.distributed as dist
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from . import _direct
from ._checkpointer import Checkpointer, StorageType, log, unread
from ._collect import MANIFEST, AsyncCheckpointAgent, anywhere, gathered
from ._files import Bytes

__all__ = ["FlashCkptTrainer", "HfDdpCheckpointer", "HfDeepSpeedCheckpointer", "StorageType"]


class HfDdpCheckpointer:
    """What FlashCkptTrainer saves with, and others that save with torch.save in the directories checkpoint-<step> of a directory.

    While ckpt_agent.save takes the place of torch.save files are collected; then one of the methods keeps them.
    """

    def __init__(self, checkpoint_dir, storage=None, comm_backend="", *, keep=0):
        unread(comm_backend)
        self.checkpoint_dir = checkpoint_dir
        self.async_save_engine = Checkpointer(checkpoint_dir, shards="world", keep=keep, reshards=True)
        self.ckpt_agent = AsyncCheckpointAgent(storage, checkpoint_dir)

    def save_checkpoint_to_memory(self, step, blocking=False):
        """Keeps what was collected, and returns when the copy is made; False where nothing was kept."""
        return self._keep(step, StorageType.MEMORY)

    def save_checkpoint_to_storage(self, step, blocking=False):
        """Keeps what was collected, and has it written to checkpoint-<step> behind the training."""
        return self._keep(step, StorageType.DISK)

    def _keep(self, step, storage_type):
        name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
        files = {path[len(name) + 1:]: parts for path, parts in self.ckpt_agent.files.items() if path.startswith(name + os.sep)}
        if len(files) != len(self.ckpt_agent.files):
            raise ValueError(f"cannot keep step {step}: not all of {sorted(self.ckpt_agent.files)} lie in {name}")
        self.ckpt_agent.files = {}
        root = os.path.join(self.async_save_engine.directory, name)
        if self.async_save_engine.rank == 0 and not os.path.exists(os.path.join(root, MANIFEST)):  # what was written to it directly
            files = {**contents(root), **files}
        return self.async_save_engine.save_files(step, files, name, storage_type=storage_type)


class HfDeepSpeedCheckpointer(HfDdpCheckpointer):
    def __init__(self, engine, checkpoint_dir, storage=None, comm_backend="", *, keep=0):
        super().__init__(checkpoint_dir, storage, comm_backend, keep=keep)
        self.engine = engine


class _Began(TrainerCallback):
    """Hears when a training has restored everything."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer._restored()


class FlashCkptTrainer(Trainer):
    """A Trainer whose checkpoints cost a memory copy: DistributedDataParallel and DeepSpeed.

    Where Trainer saves, the step is kept in memory and written behind the training. memory_steps is how often, besides, a step is
    kept in memory only: it is what a worker that fails comes back to, and is written when workers have ended. save_total_limit
    leaves so many of the newest steps on disk, and the best one where Trainer is to load it at the end.
    """

    _scratch = None  # the directory that stands for output_dir while Trainer saves
    _kept = -1  # the step that was kept last
    _found = None  # the step that get_last_checkpoint has decided for
    _source = _reading = None  # the agent that has it, and what has the agent serve it

    def __init__(self, *args, memory_steps=0, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.fsdp or self.is_fsdp_enabled:
            raise ValueError("FlashCkptTrainer keeps no checkpoints of FSDP: use DistributedDataParallel or DeepSpeed, or muster.checkpoint.ShardedCheckpointer")
        if self.args.push_to_hub and self.args.hub_strategy != "end":
            raise ValueError(f"hub_strategy={str(self.args.hub_strategy)!r} needs each checkpoint on disk at once: use 'end'")
        if self.args.save_on_each_node:
            raise ValueError("save_on_each_node=True would have several nodes write the same files: muster keeps one copy of each, leave it out")
        self.memory_steps = memory_steps
        self.flash_checkpointer = HfDdpCheckpointer(self.args.output_dir, keep=self.args.save_total_limit or 0)
        self.add_callback(_Began(self))

    # -- saving

    def _get_output_dir(self, trial):
        return self._scratch or super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial, *args, **kwargs):
        checkpointer = self.flash_checkpointer.async_save_engine
        if not checkpointer.connected or self.hp_search_backend is not None or trial is not None:
            super()._save_checkpoint(model, trial, *args, **kwargs)
            if not checkpointer.connected and checkpointer.rank == 0:
                _direct.track(checkpointer.directory, self.state.global_step)
            return
        kept, full = self._keep(StorageType.DISK, model, trial, *args, **kwargs)
        if anywhere(full):
            if self.is_world_process_zero():
                log.warning("there is no memory for a checkpoint: the training waits until step %d is on disk", self.state.global_step)
            super()._save_checkpoint(model, trial, *args, **kwargs)
            checkpointer.wrote(self.state.global_step)

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        super()._maybe_log_save_evaluate(*args, **kwargs)
        step = self.state.global_step
        if self.memory_steps and step % self.memory_steps == 0 and step != self._kept and self.flash_checkpointer.async_save_engine.connected:
            self._keep(StorageType.MEMORY, self.model, None)

    def _keep(self, storage_type, model, trial, *args, **kwargs):
        """Has Trainer save to a directory that nobody sees, where only what is small gets, and keeps that. Returns whether it is
        kept, and whether memory is full."""
        step, checkpointer = self.state.global_step, self.flash_checkpointer.async_save_engine
        name, best = f"{PREFIX_CHECKPOINT_DIR}-{step}", self.state.best_model_checkpoint
        self._kept = step
        with tempfile.TemporaryDirectory(prefix="muster-") as scratch:
            root = os.path.join(scratch, name)
            agent = AsyncCheckpointAgent(root=root)
            os.mkdir(root)  # all ranks have to see it, to know that a step is the best
            self._scratch = scratch
            try:
                with agent.collecting():
                    super()._save_checkpoint(model, trial, *args, **kwargs)
            finally:
                self._scratch = None
            if self.state.best_model_checkpoint == root:  # as it will be called
                self.state.best_model_checkpoint = os.path.join(self.args.output_dir, name) if storage_type == StorageType.DISK else best
                if self.args.should_save:
                    self.state.save_to_json(os.path.join(root, "trainer_state.json"))
            files = {**contents(root), **agent.files}
            found = self.state.best_model_checkpoint and re.search(r"-(\d+)$", self.state.best_model_checkpoint)
            try:
                return checkpointer.save_files(step, files, name, storage_type=storage_type, spare=[int(found[1])] if found else ()), False
            except MemoryError as e:
                log.warning("step %d is not kept: %s", step, e)
                return False, True

    def _load_best_model(self):
        self.wait_latest_checkpoint()
        super()._load_best_model()

    def _finalize_training(self, *args, **kwargs):
        limit = self.args.save_total_limit
        if self.flash_checkpointer.async_save_engine.connected:
            self.args.save_total_limit = None  # muster removes what is too much
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until all that was saved for the disk is there. Returns the newest step that is, or -1."""
        return self.flash_checkpointer.async_save_engine.wait_latest_checkpoint(timeout)

    # -- restoring

    def get_last_checkpoint(self):
        """Decides, for all ranks alike, from which step they restore. Returns its path, False where there is none; train knows
        whether it lies in memory. All ranks call it."""
        directory, found = self.args.output_dir, self.flash_checkpointer.async_save_engine
        self._found = found.load_files() if found.connected else None
        plain = os.path.isdir(directory) and get_last_checkpoint(directory)
        if self._found is None or self._found.source == "none":
            return plain or False
        if self._found.source == "memory":
            return os.path.join(directory, self._found.directory)
        # What Trainer wrote itself since has no manifest.
        newer = plain and int(plain.rsplit("-", 1)[1]) > self._found.step and not os.path.exists(os.path.join(plain, MANIFEST))
        return plain if newer else os.path.join(directory, os.path.basename(self._found.root))

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        path = resume_from_checkpoint
        if path is True or path and self._found is None and os.path.dirname(os.path.abspath(path)) == os.path.abspath(self.args.output_dir):
            newest = self.get_last_checkpoint()
            path = newest if path is True and newest else path
        found, self._found = self._found, None
        if not path or getattr(found, "source", "") != "memory" or os.path.basename(os.path.abspath(path)) != found.directory:
            return super().train(path, *args, **kwargs)
        if self.args.load_best_model_at_end:
            self.wait_latest_checkpoint()  # what was the best may be on its way to disk
        scratch = tempfile.mkdtemp(prefix="muster-")
        try:
            self._source = AsyncCheckpointAgent(root=os.path.join(scratch, found.directory), found=found)
            names = gathered(found.names)
            self._source.lay_out(sum(names, []), names[0] + found.names)
            del found
            self._serve()
            return super().train(self._source.root, *args, **kwargs)
        finally:
            self._restored()
            self._source = None
            shutil.rmtree(scratch, ignore_errors=True)

    def _inner_training_loop(self, *args, **kwargs):
        self._serve()  # once more, where a batch was too large
        return super()._inner_training_loop(*args, **kwargs)

    def _serve(self):
        if self._source is not None and self._source.found is not None and self._reading is None:
            self._reading = self._source.serving()
            self._reading.__enter__()

    def _restored(self):
        """Lets go of muster's memory: what was restored is in the model."""
        if self._reading is None:
            return
        self._reading.__exit__(None, None, None)
        self._reading = None
        for optimizer in unwrapped(self.optimizer):
            self._source.found.give(optimizer)
        if not self.args.auto_find_batch_size:
            self._source.found = None


def unwrapped(optimizer):
    """Yields an optimizer and those that it stands for."""
    while optimizer is not None:
        if isinstance(getattr(optimizer, "state", None), dict):
            yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)


def contents(root):
    """Returns the files of a directory."""
    files = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as f:
                files[os.path.relpath(path, root)] = [Bytes(f.read())]
    return files

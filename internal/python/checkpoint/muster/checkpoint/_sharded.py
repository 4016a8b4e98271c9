import os
import re
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import _direct, _place
from ._checkpointer import Checkpointer, StorageType, log
from ._dcp import METADATA, DiskReader, MemoryReader, Planner
from ._restore import DiskStep


class _Full(Exception):
    """Memory has no room for this rank's part of a step."""


class ShardedCheckpointer(Checkpointer):
    """Saves and restores states whose tensors lie divided over the ranks: DTensor (FSDP2, tensor parallelism) and
    ShardedTensor (FSDP). On disk a step is a directory of torch.distributed.checkpoint.

    All ranks make one, and call its methods together. group is a process group for CPU tensors, by which they agree; by default
    one on gloo. The other arguments are those of Checkpointer.
    """

    _keeps_aside = True

    def __init__(self, directory=None, *, keep=0, keep_every=0, size_hint=0, group=None, strategy=None, replicas=0):
        super().__init__(directory, shards="world", keep=keep, keep_every=keep_every, size_hint=size_hint, reshards=True, strategy=strategy, replicas=replicas)
        self._group, self._planner = group, None

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        """Keeps a state as that of a step, and returns when the rank's part of it is copied.

        path, by default the step's number, is a name in the Checkpointer's directory. Returns False where nothing was kept.
        """
        step, name, persist = int(step), self._name(step, path), storage_type == StorageType.DISK
        if self._link is None and not persist:
            return self._save_directly(step, {}, name, (), persist)
        state = {key: v.state_dict() if hasattr(v, "state_dict") and not isinstance(v, torch.Tensor) else v for key, v in state_dict.items()}
        if self._link is None:
            return self._save_stock(step, state, name)
        full = False
        with torch.no_grad():
            files = self._plans().files(state)
            aside = self._planner.aside(state) if self._local else None
            try:
                kept = self.save_files(step, files, directory=name, storage_type=storage_type, aside=aside)
            except _Full:
                kept, full = False, True
            if not persist or not any(self._planner.agree(full)):
                return kept
        if self.rank == 0 and "full" not in self._told:
            self._told.add("full")
            log.warning("there is no memory for a checkpoint beside the training: it waits until step %d is on disk", step)
        self.wait_latest_checkpoint()
        return self._save_stock(step, state, name)

    def _save_around(self, *_):
        raise _Full

    def _save_stock(self, step, state, name):
        """Has torch write a step, while the training waits."""
        self._look(step)
        group = self._plans().group
        root = os.path.join(self.directory, name)
        stage = os.path.join(self.directory, f".{name}.muster-stage")  # muster removes what has such a name
        if self.rank == 0:
            shutil.rmtree(stage, ignore_errors=True)
            os.makedirs(stage)
        self._planner.agree(False)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(stage), process_group=group, no_dist=group is None)
        if self.rank == 0:
            old = os.path.join(self.directory, f".{name}.muster-old")
            if os.path.exists(root):
                os.rename(root, old)
            os.rename(stage, root)
            shutil.rmtree(old, ignore_errors=True)
            _direct.track(self.directory, step)
            if self._link is not None:
                self._link.ask("written", step=step)
        self._planner.agree(False)
        return True

    def reader(self, path=""):
        """Decides, for all ranks alike, from which step they restore. Returns a StorageReader for dcp.load, None where there is
        no step. With path what is on disk comes from that directory."""
        found = self.load_files(not path)
        if found.source == "memory":
            return MemoryReader(found, lambda: self._written(found))
        if self._link is None and not path:
            found = DiskStep(found.step, _directory_of(self.directory, found.step))
            self.step, self.source = found.step if found.root else -1, found.source
        root = os.path.abspath(os.fspath(path)) if path else found.root
        if not root:
            return None
        if not os.path.exists(os.path.join(root, METADATA)):
            raise RuntimeError(f"{root} is no directory of torch.distributed.checkpoint: it has no {METADATA}. Was it saved by another kind of Checkpointer?")
        self.source = "disk"
        return DiskReader(root)

    def _written(self, found):
        """Returns a reader of a step in memory that muster writes behind the training, once it is on disk: without a job token a rank has
        from there what only other nodes have in memory."""
        log.info("parts of step %d are on other nodes: this rank waits until they are on disk", found.step)
        if self.wait_latest_checkpoint() != found.step:
            raise RuntimeError(f"parts of step {found.step} are in memory of other nodes alone, which without a job token give nothing away: save it with StorageType.DISK")
        reader = DiskReader(os.path.join(self.directory, found.directory))
        reader.set_up_storage_reader(reader.read_metadata(), False)
        return reader

    def load_checkpoint(self, state_dict, path=""):
        """Loads the newest step into a state of the form that was saved, and returns whether there is one.

        Tensors are filled in place; other values are replaced. Tensors may be divided in another way, and over another number of
        ranks, than when they were saved.
        """
        reader = self.reader(path)
        if reader is None:
            return False
        group = self._plans().group
        dcp.load(state_dict, storage_reader=reader, process_group=group, no_dist=group is None)
        return True

    def _plans(self):
        if self._planner is None:
            world = _place.world()
            group = self._group
            if dist.is_available() and dist.is_initialized():
                if dist.get_world_size(group) != world:
                    raise RuntimeError(f"the process group has {dist.get_world_size(group)} ranks of {world}: give one of all ranks")
                if group is None:
                    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
            elif world > 1:
                raise RuntimeError("the ranks cannot agree on a checkpoint before torch.distributed.init_process_group")
            self._planner = self._planner_of(group)
        return self._planner

    def _planner_of(self, group):
        return Planner(group, self._local)

    def _name(self, step, path):
        path = os.path.join(self.directory, os.fspath(path) if path else str(step))
        if os.path.dirname(os.path.abspath(path)) != self.directory:
            raise ValueError(f"cannot save step {step} to {path}: its directory has to lie right in {self.directory}, which is that of the Checkpointer")
        return os.path.basename(os.path.abspath(path))


def _directory_of(directory, step):
    """Returns where a step was written without muster: under its number, or a name that ends with it."""
    for name in sorted(os.listdir(directory), key=lambda name: name != str(step)) if step >= 0 else ():
        number = re.search(r"\d+$", name)
        if number and int(number[0]) == step and not name.startswith(".") and os.path.exists(os.path.join(directory, name, METADATA)):
            return os.path.join(directory, name)
    return ""

"""Megatron-LM's checkpoints, kept by muster.

    from muster.checkpoint.megatron import StorageType, load_checkpoint, save_checkpoint, wait_latest_checkpoint

    iteration, flops = load_checkpoint(model, optimizer, opt_param_scheduler)
    save_checkpoint(iteration, model, optimizer, opt_param_scheduler, flops, storage_type=StorageType.MEMORY)

Megatron's own functions do the work, as its arguments say: what they write is caught on its way to the disk, and what they read
comes from memory where muster has a newer step there. The files on disk are those that Megatron would have written: iter_0000010/
and latest_checkpointed_iteration.txt, in its format torch or torch_dist. Written for megatron-core 0.19.2; formats other than these
two go through a temporary directory, and cost a copy more.
"""
import contextlib
import importlib
import inspect
import io
import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader

from . import _direct
from ._checkpointer import StorageType, log
from ._dcp import MemoryReader, Planner
from ._files import Archive, Bytes, TensorArchive
from ._sharded import ShardedCheckpointer, _Full

__all__ = ["MegatronCheckpointer", "StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

TRACKER = "latest_checkpointed_iteration.txt"


def save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far=0, storage_type=StorageType.DISK):
    """Keeps what Megatron's save_checkpoint would write to --save, and returns when it is copied: False where nothing was kept."""
    state = iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far
    return MegatronCheckpointer.singleton_instance().save(*state, storage_type=storage_type)


def load_checkpoint(model, optimizer, opt_param_scheduler, load_arg="load", strict=True):
    """Loads the newest step in memory, else what Megatron's load_checkpoint finds. Returns what that returns: the iteration and
    the number of floating point operations, 0 and 0 where there is no checkpoint; versions before 0.5 return the iteration only."""
    return MegatronCheckpointer.singleton_instance().load(model, optimizer, opt_param_scheduler, load_arg, strict)


def wait_latest_checkpoint(timeout=1800):
    """Waits until all that was saved for the disk is there. Returns the newest iteration on disk that this job wrote, or -1."""
    return MegatronCheckpointer.singleton_instance().wait_latest_checkpoint(timeout)


class MegatronCheckpointer(ShardedCheckpointer):
    """Keeps the checkpoints of one directory, that of Megatron's --save by default. All ranks make one, and call it together."""

    _instances = {}  # by directory
    _keeps_aside = False

    def __init__(self, checkpoint_dir=None, *, keep=0, keep_every=0, strategy=None, replicas=0):
        args = _megatron().get_args()
        retained = getattr(args, "save_retain_interval", None)
        if retained and not keep and strategy is None:
            keep, keep_every = 1, retained
        super().__init__(checkpoint_dir or args.save, keep=keep, keep_every=keep_every, strategy=strategy, replicas=replicas)
        self._context = {}  # Megatron keeps its plan of a step for the next one here

    @classmethod
    def singleton_instance(cls, checkpoint_dir=None, **options):
        """Returns the one of a directory. Options of a later call count where no earlier one had them; see Checkpointer.also."""
        directory = os.path.abspath(checkpoint_dir or _megatron().get_args().save)
        if directory not in cls._instances:
            cls._instances[directory] = cls(directory, **options)
        else:
            cls._instances[directory].also(**options)
        return cls._instances[directory]

    def save(self, iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far=0, storage_type=StorageType.DISK):
        """What save_checkpoint of this module does."""
        megatron, step, persist = _megatron(), int(iteration), storage_type == StorageType.DISK
        if self._link is None and not persist:
            return self._save_directly(step, {}, "", (), persist)
        takes = inspect.signature(megatron.save_checkpoint).parameters
        values = {"num_floating_point_operations_so_far": num_floating_point_operations_so_far, "checkpointing_context": self._context}
        values = {name: value for name, value in values.items() if name in takes}

        def write():
            megatron.save_checkpoint(step, model, optimizer, opt_param_scheduler, **values)

        if self._link is None:
            return self._save_stock(step, megatron, write)
        files = self._caught(step, megatron, write)
        full = False
        try:
            kept = self.save_files(step, files, _name(step), [(TRACKER, str(step))], storage_type)
        except _Full:
            kept, full = False, True
        if not persist or not any(self._plans().agree(full)):
            return kept
        if self.rank == 0 and "full" not in self._told:
            self._told.add("full")
            log.warning("there is no memory for a checkpoint beside the training: it waits until step %d is on disk", step)
        self.wait_latest_checkpoint()
        return self._save_stock(step, megatron, write)

    def _save_stock(self, step, megatron, write):
        """Has Megatron write a step, while the training waits."""
        self._look(step)
        with _set(megatron.get_args(), save=self.directory, async_save=False):
            write()
        if self.rank == 0:
            _direct.track(self.directory, step)
            if self._link is not None:
                self._link.ask("written", step=step)
        return True

    def _caught(self, step, megatron, write):
        """Returns the files that write would add to a step. What it does besides that happens in a directory that is thrown away."""
        args, files, save = megatron.get_args(), {}, torch.save
        told = {name: getattr(args, name, None) for name in ("save", "async_save", "verify_integrity")}
        with tempfile.TemporaryDirectory(prefix="muster-megatron-") as root, contextlib.ExitStack() as stack:
            root = os.path.realpath(root)
            inside = os.path.join(root, _name(step))
            os.mkdir(inside)

            def caught(obj, f, *more, **options):
                path = _inside(f, inside)
                if path is None:
                    return save(obj, f, *more, **options)
                files[path] = [Archive(obj)]

            stack.enter_context(_set(torch, save=caught))
            stack.enter_context(_set(args, save=root, async_save=False, verify_integrity=False))
            self._catch_sharded(stack, args, told, files)
            write()
            for directory, _, names in os.walk(inside):
                for name in names:
                    path = os.path.relpath(os.path.join(directory, name), inside)
                    with open(os.path.join(directory, name), "rb") as f:
                        files.setdefault(path, [Bytes(f.read())])
        return files

    def _catch_sharded(self, stack, args, told, files):
        """Catches what is written by megatron.core.dist_checkpointing."""
        try:
            from megatron.core import dist_checkpointing
            from megatron.core.dist_checkpointing.strategies import torch as strategies
        except ImportError:  # a version without it
            return
        original = dist_checkpointing.save

        def save(*more, **options):
            with _set(args, **told):  # what is saved of the arguments is what the user said
                return original(*more, **options)

        def write(strategy, sharded_state_dict, *_, **__):
            named, *_ = strategies._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, strategy.keep_only_main_replica)
            planner = self._plans()
            planner.core = strategies
            with torch.no_grad():
                files.update(planner.files(strategies.mcore_to_pyt_state_dict(named, False)))

        stack.enter_context(_set(dist_checkpointing, save=save))
        stack.enter_context(_set(strategies.TorchDistSaveShardedStrategy, save=write))

    def _planner_of(self, group):
        return _Planner(group)

    def load(self, model, optimizer, opt_param_scheduler, load_arg="load", strict=True):
        """What load_checkpoint of this module does."""
        megatron = _megatron()
        args = megatron.get_args()

        def read():
            return megatron.load_checkpoint(model, optimizer, opt_param_scheduler, load_arg, strict)

        if self._link is None or load_arg != "load" or getattr(args, "ckpt_step", None):
            return read()
        found = self.load_files()
        if found.source != "memory" and not self._passed_over(args.load, found):
            return read()
        with tempfile.TemporaryDirectory(prefix="muster-megatron-") as root, contextlib.ExitStack() as stack:
            root = os.path.realpath(root)
            with open(os.path.join(root, TRACKER), "w") as f:
                f.write(str(found.step))
            inside = os.path.join(root, _name(found.step))
            if found.source == "memory":
                _serve(stack, found, inside)
            else:
                os.symlink(found.root, inside)
            stack.enter_context(_set(args, load=root, verify_integrity=False))  # muster has summed what it found
            return read()

    def _passed_over(self, directory, found):
        """Says whether the step that Megatron would load from disk is one of ours that is damaged."""
        if found.source != "disk" or not directory or os.path.abspath(directory) != self.directory:
            return False
        try:
            with open(os.path.join(directory, TRACKER)) as f:
                step = int(f.read())
        except (FileNotFoundError, ValueError):
            return True
        root = os.path.join(directory, _name(step))
        return step != found.step and (not os.path.exists(root) or os.path.exists(os.path.join(root, "muster_manifest.json")))


class _Planner(Planner):
    """Plans as megatron.core does, whose module of strategies is core."""

    core = None

    def form(self, state):
        form = []
        for key, value in state.items():
            if isinstance(value, io.BytesIO):
                form.append(key)
                continue
            shards = getattr(value, "_local_shards", [value])
            if not all(hasattr(shard, "_sh_ten") for shard in shards):
                return None
            form.append((key, [(s.dtype, s.global_shape, s.global_offset, s.local_shape) for s in (shard._sh_ten for shard in shards)]))
        return form

    def _new(self, state):
        planner = self.core.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(state, is_coordinator=self.rank == 0)
        return planner

    def _plan(self, state, form):
        planner = self._new(state)
        self._items = self._planned(planner)
        return form, planner

    def _parts(self, state, planner=None):
        planner, parts = planner or self._new(state), []
        for item in self._items:
            data = planner.resolve_data(item)
            parts.append(TensorArchive(data.detach()) if isinstance(data, torch.Tensor) else Bytes(data.getvalue()))
        return parts, [len(part.data) for part in parts if isinstance(part, Bytes)]


def _serve(stack, found, inside):
    """Makes a directory of a step in memory: small files as they are, empty ones in the places of those that are read from memory."""
    names = [(path, all(isinstance(part, memoryview) for part in found.parts(path))) for path in found.paths()]
    if dist.is_initialized():
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, names)
        names = [name for names in told for name in names]
    elsewhere = set()
    os.mkdir(inside)
    for path, plain in names:
        os.makedirs(os.path.dirname(os.path.join(inside, path)), exist_ok=True)
        with open(os.path.join(inside, path), "wb") as f:
            if plain:
                f.writelines(found.parts(path))
            else:
                elsewhere.add(path)
    load, read_data = torch.load, FileSystemReader.read_data

    def loaded(f, map_location=None, *more, **options):
        path = _inside(f, inside)
        return found.load(path, map_location) if path in elsewhere else load(f, map_location, *more, **options)

    def read(reader, plan, planner):
        if _inside(reader.path, inside) is None or not any(place.relative_path in elsewhere for place in reader.storage_data.values()):
            return read_data(reader, plan, planner)
        memory = MemoryReader(found)
        memory.places(reader.storage_data)
        return memory.read_data(plan, planner)

    stack.enter_context(_set(torch, load=loaded))
    stack.enter_context(_set(FileSystemReader, read_data=read))


def _inside(path, directory):
    """Returns where a path lies in a directory, None where it does not, or is none."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    path = os.path.relpath(path, directory)
    return None if path.split(os.sep)[0] == os.pardir else path


@contextlib.contextmanager
def _set(thing, **values):
    """Sets attributes for a while; those that a thing does not have stay away."""
    before = {name: getattr(thing, name) for name in values if hasattr(thing, name)}
    try:
        for name in before:
            setattr(thing, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def _name(step):
    return f"iter_{step:07d}"


def _megatron():
    """Returns Megatron's module of checkpoints. Its package megatron.training was megatron before version 0.7."""
    for package in ("megatron.training", "megatron"):
        try:
            return importlib.import_module(package + ".checkpointing")
        except ModuleNotFoundError as e:
            if e.name not in ("megatron", package, package + ".checkpointing"):
                raise
    raise ImportError("cannot import megatron.training.checkpointing, nor megatron.checkpointing: put Megatron-LM on PYTHONPATH")

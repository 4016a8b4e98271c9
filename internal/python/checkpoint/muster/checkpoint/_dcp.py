"""Directories of torch.distributed.checkpoint: what each rank has of a state becomes a file __<rank>_0.distcp, and .metadata,
which rank 0 adds, says what lies where. Formats and calls are those of PyTorch 2.15.0, torch/distributed/checkpoint."""
import io
import os
import pickle
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.checkpoint.utils import _DistWrapper, find_tensor_shard
from torch.futures import Future

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import DTensor

from . import _place
from ._files import Bytes, TensorArchive

METADATA = ".metadata"


class Planner:
    """Makes parts of states, and the metadata. What ranks agree on is kept as long as their states have the same form: a save
    then costs one reduction of two numbers.

    local says that a node can have nothing from others: each rank keeps aside what it has and another one saves, the first of its node
    also what all have."""

    def __init__(self, group, local=False):
        self.group, self._local = group, local
        self._first = _place.local_rank() == 0  # of its node
        self._beside = [], []  # what it keeps aside: items, paths
        self._last = None  # the planner of the last state, where it is needed still
        self._ranks = _DistWrapper(group, group is not None, 0)
        self.rank = self._ranks.get_rank()
        self.file = f"__{self.rank}_0.distcp"
        self._form = None  # of the state that was planned for
        self._items, self._paths = [], []  # of this rank's plan, tensors first: only what comes behind them changes its place
        self._sizes = []  # of the byte items in the last save
        self._metadata, self._pickled = None, b""  # rank 0's

    def agree(self, *flags):
        """Returns which flags any of the ranks has raised. Ranks wait for each other."""
        if self.group is None:
            return flags
        numbers = torch.tensor([int(flag) for flag in flags], device="cpu")
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.group)
        return tuple(bool(n) for n in numbers.tolist())

    def files(self, state):
        """Returns the rank's files of a state."""
        form = self.form(state)
        new = form is None or form != self._form
        if not new:
            parts, sizes = self._parts(state)
        new, moved = self.agree(new, not new and sizes != self._sizes)
        if new:
            self._form = None
            form, planner = self._plan(state, form)
            parts, sizes = self._parts(state, planner)
            self._last = planner if self._local else None
        if new or moved:
            self._tell(parts, sizes, new)
            self._form, self._sizes = form, sizes
        files = {self.file: parts} if parts else {}
        if self.rank == 0:
            files[METADATA] = [Bytes(self._pickled)]
        return files

    def form(self, state):
        """Returns what a plan depends on, None where that is not known. Two states of the same form have the same plan."""
        return _form(state)

    def _plan(self, state, form):
        """Has the ranks plan anew. Returns the form, and the planner where tensors can be had from it alone."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(state_dict=state, is_coordinator=self.rank == 0)
        self._items = self._planned(planner)
        self._paths = [_keys(state, planner.mappings[item.index.fqn]) for item in self._items]
        if self._local:
            mine = {item.index for item in self._items}
            every = create_default_local_save_plan(planner.state_dict, self._first).items
            items = [item for item in every if item.index not in mine and (self._first or item.type == WriteItemType.SHARD)]
            self._beside = items, [_keys(state, planner.mappings[item.index.fqn]) for item in items]
        planned = zip([*self._items, *self._beside[0]], [*self._paths, *self._beside[1]])
        if not all(_at(state, path) is planner.state_dict[item.index.fqn] for item, path in planned):
            return None, planner  # it has shards of shards taken apart, as it will have to next time
        return form, planner if form is None else None

    def _planned(self, planner):
        def own():
            for key, value in planner.state_dict.items():
                if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                    raise TypeError(f"cannot save {key}: torch.distributed.checkpoint has no tensors of the layout {value.layout}")
            return planner.create_local_plan()

        def every(plans):
            plans, self._metadata = planner.create_global_plan(plans)
            return plans

        plan = planner.finish_plan(self._ranks.reduce_scatter("plan", own, every))
        return sorted(plan.items, key=lambda item: item.type == WriteItemType.BYTE_IO)

    def aside(self, state):
        """Returns files for the memory of this node, when files has planned: what others save and this rank has, and the metadata."""
        parts, _ = self._parts(state, self._last, *self._beside)
        files, self._last = {}, None
        if self._first and self.rank != 0:
            files[METADATA] = [Bytes(self._pickled)]
        if parts:
            numbers = {item.index: n for n, item in enumerate(self._beside[0], 1)}
            files[_aside(self.rank)] = [Bytes(pickle.dumps(numbers)), *parts]
        return files

    def _parts(self, state, planner=None, items=None, paths=None):
        """Returns the parts of the rank's file, and the sizes of those at its end that may change."""
        parts, sizes = [], []
        items, paths = (self._items, self._paths) if items is None else (items, paths)
        for item, path in zip(items, paths):
            value, data = _at(state, path), None
            if item.type != WriteItemType.BYTE_IO:
                data = (planner.resolve_data(item) if planner else find_tensor_shard(value, item.index)).detach()
                if not (data.is_quantized or data.is_conj() or data.is_neg()):
                    parts.append(TensorArchive(data))
                    continue
            out = io.BytesIO()
            torch.save(value if data is None else data.cpu().clone(), out)
            parts.append(Bytes(out.getvalue()))
            sizes.append(len(parts[-1].data))
        return parts, sizes

    def _tell(self, parts, sizes, new):
        """Has rank 0 write down where the ranks' parts lie."""
        at, places = 0, []
        for item, part in zip(self._items, parts):
            size = part.size() if isinstance(part, TensorArchive) else len(part.data)
            if new or isinstance(part, Bytes):
                places.append((item.index, at, size))
            at += size
        told = self._ranks.gather_object((self.file, places))
        if self.rank == 0:
            if new:
                self._metadata.storage_data, self._metadata.version = {}, "1.0.0"
            for file, places in told:
                self._metadata.storage_data.update((index, _StorageInfo(file, at, size)) for index, at, size in places)
            self._pickled = pickle.dumps(self._metadata)
        if self._local:
            self._pickled = self._ranks.broadcast_object(self._pickled)


def _aside(rank):
    """Returns the name of what a rank keeps aside."""
    return f"__{rank}.aside"


def _at(state, path):
    for key in path:
        state = state[key]
    return state


def _keys(state, path):
    """Returns a path of the planner, in which all keys are text, with those that the state has."""
    keys = []
    for key in path:
        if isinstance(state, Mapping) and key not in state:
            key = next(k for k in state if str(k) == key)
        keys.append(key)
        state = state[key]
    return keys


def _form(state):
    form, waiting = [], [state]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if kind is DTensor:
                about = value._spec, value._local_tensor.shape, value._local_tensor.stride()
            elif kind is ShardedTensor:
                about = [(shard.metadata, shard.tensor.stride()) for shard in value.local_shards()], value.size()
            elif kind in (torch.Tensor, torch.nn.Parameter):
                about = value.shape, value.stride()
            else:
                return None
            form.append((kind, value.dtype, value.layout, value.requires_grad, about))
        elif isinstance(value, dict):
            form.append((kind, list(value)))
            waiting.extend(value.values())
        elif isinstance(value, Mapping):
            return None
        elif isinstance(value, list) and any(isinstance(v, (torch.Tensor, Mapping, list)) for v in value):
            form.append((kind, len(value)))
            waiting.extend(value)
        else:
            form.append(kind)
    return form


class MemoryReader(StorageReader):
    """Reads a step in memory for torch.distributed.checkpoint, whichever rank of this node has saved what is asked for. written, where
    it is given, waits until the step is on disk, too, and returns a reader of that: for what this node has not."""

    def __init__(self, found, written=None):
        self._found, self._written = found, written
        self._files = {}  # parts by where they begin, by path
        self._here = {}  # whether this node has a file, by path
        self._beside, self._numbers = {}, {}  # what ranks of this node have kept aside, by path

    def _part(self, path, at):
        parts = self._files.get(path)
        if parts is None:
            parts = self._files[path] = dict(zip(self._found.starts(path), self._found.parts(path)))
        return parts[at]

    def _stored(self, place, index):
        """Returns a stored item: from the file that has it, or what a rank of this node has kept aside of it; None where it has neither."""
        path = place.relative_path
        if path not in self._here:
            self._here[path] = self._found.exists(path)
        if self._here[path]:
            return self._part(place.relative_path, place.offset)
        rank, local = _place.rank(), _place.local_rank()
        first = rank - local
        for other in [rank, *range(first, first + _place.local_world())]:
            path = _aside(other)
            if path not in self._beside:
                self._beside[path] = self._found.parts(path) if self._found.exists(path) else None
                self._numbers[path] = pickle.loads(self._beside[path][0]) if self._beside[path] else {}
            if index in self._numbers[path]:
                return self._beside[path][self._numbers[path][index]]
        return None

    def reset(self, checkpoint_id=None):
        pass

    def read_metadata(self, *args, **kwargs):
        return pickle.loads(self._part(METADATA, 0))

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self.places(metadata.storage_data)

    def places(self, storage_data):
        """Says where what will be asked for lies, as metadata does."""
        self._places = storage_data

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        elsewhere = []
        for item in plan.items:
            place = self._places[item.storage_index]
            part = self._stored(place, item.storage_index)
            if part is None:
                elsewhere.append(item)
            elif item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(part))
            else:
                _give(planner, item, part("cpu") if callable(part) else torch.load(io.BytesIO(part), weights_only=True))
        if elsewhere and self._written is None:
            raise RuntimeError(f"step {self._found.step} in memory has no {elsewhere[0].storage_index} on this node")
        if elsewhere:
            self._written().read_data(LoadPlan(elsewhere), planner).wait()
        return _done()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


class DiskReader(FileSystemReader):
    """Reads a directory as torch does, and what DLRover's package writes into one: tensors without any format."""

    def read_metadata(self, *args, **kwargs):
        metadata = super().read_metadata(*args, **kwargs)
        self._tensors = metadata.state_dict_metadata
        return metadata

    def read_data(self, plan, planner):
        if all(isinstance(place, _StorageInfo) for place in self.storage_data.values()):
            return super().read_data(plan, planner)
        for item in plan.items:
            place = self.storage_data[item.storage_index]
            with open(os.path.join(self.path, place.relative_path), "rb") as f:
                f.seek(place.offset)
                data = bytearray(f.read(place.length))
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data))
                continue
            about = self._tensors[item.storage_index.fqn]
            chunk = next(c for c in about.chunks if item.storage_index.offset in (None, c.offsets))
            tensor = torch.frombuffer(data, dtype=about.properties.dtype) if data else torch.empty(0, dtype=about.properties.dtype)
            _give(planner, item, tensor.reshape(chunk.sizes))
        return _done()


def _give(planner, item, tensor):
    """Puts the part of a tensor that an item asks for into its place in the state."""
    target = planner.resolve_tensor(item).detach()
    target.copy_(narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths))
    planner.commit_tensor(item, target)


def _done():
    future = Future()
    future.set_result(None)
    return future

"""What a framework would write to a step's directory is collected, and what it would read from there is taken from memory."""
import contextlib
import json
import os
import struct
import sys

import torch
import torch.distributed as dist

from ._files import Archive, Bytes
from ._safetensors import _NAMES, safetensors_file

MANIFEST = "muster_manifest.json"  # in the directory of each step that muster wrote

_save, _load = torch.save, torch.load


class AsyncCheckpointAgent:
    """Stands in for torch.save and torch.load, and for DeepSpeed's checkpoint engine, as far as the directory root goes.

    What is saved below root is kept in files, {path below it: parts}. What is loaded from there comes from found, where that is
    a MemoryStep. Everything else is left to torch, and what else a checkpoint engine can do to the one that was there before.
    storage is that of DLRover's class of this name, and not used.
    """

    def __init__(self, storage=None, root="", found=None, engine=None):
        self.storage, self.root, self.found, self.engine = storage, os.path.abspath(root or os.sep), found, engine
        self.files = {}

    def __getattr__(self, name):
        if name == "engine" or self.engine is None:
            raise AttributeError(name)
        return getattr(self.engine, name)

    def inside(self, path):
        """Returns a path's name below root, None where it is not there."""
        if not isinstance(path, (str, os.PathLike)):
            return None
        name = os.path.relpath(os.path.abspath(os.fspath(path)), self.root)
        return None if name == os.curdir or name.split(os.sep, 1)[0] == os.pardir else name

    def save(self, state_dict, path, *args, **kwargs):
        name = self.inside(path)
        if name is None:
            return _save(state_dict, path, *args, **kwargs)
        self.files[name] = [Archive(state_dict)]

    def load(self, path, map_location=None, **kwargs):
        name = self.inside(path)
        if self.found is None or name is None or os.path.getsize(path):  # what is small was written
            return _load(path, map_location=map_location, **{"weights_only": False, **kwargs})
        return self.found.load(name, map_location)

    # -- what DeepSpeed's checkpoint engines have besides (deepspeed 0.19.8, runtime/checkpoint_engine)

    def create(self, info):
        pass

    def commit(self, info):
        return True

    def makedirs(self, path, exist_ok=False):
        if self.inside(path) is None and os.path.abspath(path) != self.root:
            os.makedirs(path, exist_ok=exist_ok)

    def is_decoupled(self):
        return False

    def preserves_storage_sharing(self):
        return True

    # -- instead of the functions of torch and safetensors

    @contextlib.contextmanager
    def collecting(self):
        """While it lasts torch.save and safetensors.torch.save_file keep here what they would write below root."""
        safetensors = sys.modules.get("safetensors.torch")

        def save_file(tensors, filename, metadata=None):
            name = self.inside(filename)
            try:
                if name is not None:
                    self.files[name] = safetensors_file(tensors, metadata)
                    return
            except TypeError:
                pass  # of a kind that only safetensors itself can write
            plain(tensors, filename, metadata=metadata)

        plain = getattr(safetensors, "save_file", None)
        with _replaced(_save, self.save), _replaced(plain, save_file):
            yield self

    @contextlib.contextmanager
    def serving(self):
        """While it lasts torch.load and safetensors.torch.load_file read from memory what is below root."""
        plain = getattr(sys.modules.get("safetensors.torch"), "load_file", None)

        def load(f, map_location=None, *args, **kwargs):
            if args or self.inside(f) is None:
                return _load(f, map_location, *args, **kwargs)
            return self.load(f, map_location, **({"weights_only": True} | kwargs))

        def load_file(filename, device="cpu", **kwargs):
            name = self.inside(filename)
            if name is None or os.path.getsize(filename):
                return plain(filename, device=device, **kwargs)
            return {key: t.to(device) for key, t in _tensors(self.found.parts(name)).items()}

        with _replaced(_load, load), _replaced(plain, load_file):
            yield self

    def lay_out(self, names, wanted=(), small=1 << 20):
        """Makes the directory root with files of these names. Those that are wanted have what was saved, unless they are large
        and torch or safetensors read them; all others are empty, and read from memory."""
        for name in names:
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            parts = self.found.parts(name) if name in wanted else []
            archive = any(callable(part) for part in parts)
            if parts and (archive or name.endswith(".safetensors")) and self.found.size(name) > small:
                parts = []
            if archive and parts:
                _save(self.found.load(name), path)
                continue
            with open(path, "wb") as f:
                f.writelines(parts)


def gathered(names):
    """Returns the lists of all ranks."""
    if not dist.is_available() or not dist.is_initialized():
        return [names]
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, names)
    return lists


def anywhere(what):
    """Whether it is so on some rank."""
    return any(gathered(what))


@contextlib.contextmanager
def _replaced(old, new):
    """Replaces a function wherever a module has it under some name."""
    places = [] if old is None else [
        (module, name) for module in list(sys.modules.values())
        for name in ("save", "load", "save_file", "load_file", "safe_save_file", "safe_load_file")
        if getattr(module, "__dict__", {}).get(name) is old
    ]
    for module, name in places:
        setattr(module, name, new)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, old)


def _tensors(parts):
    """Returns the tensors of a file in the format of safetensors that lies in memory."""
    dtypes = {name: dtype for dtype, name in _NAMES.items()}
    at = 8 + struct.unpack_from("<Q", parts[0])[0]
    header = json.loads(bytes(parts[0][8:at]))
    header.pop("__metadata__", None)
    starts, tensors = {}, {}  # each tensor is a part, in their order, unless the file is one part
    if len(parts) > 1:
        pieces, offset = parts[1:], 0
        for piece in pieces:
            starts.setdefault((offset, offset + len(piece)), piece)
            offset += len(piece)
    for name, about in header.items():
        first, end = about["data_offsets"]
        piece = starts[first, end] if len(parts) > 1 else parts[0][at + first:at + end]
        dtype = dtypes[about["dtype"]]
        tensors[name] = (torch.frombuffer(piece, dtype=dtype) if end > first else torch.empty(0, dtype=dtype)).reshape(about["shape"])
    return tensors

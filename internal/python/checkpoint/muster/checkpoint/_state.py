"""Takes a state apart into what torch.save would write: the pickle, and the storages whose bytes it names. And back."""
import collections
import copyreg
import functools
import io
import pickle

import torch
from torch.serialization import location_tag

_CONTAINERS = (dict, list, tuple)
_FLAT = frozenset((int, float, str, bool, type(None), bytes))
_STORAGES = (torch.storage.TypedStorage, torch.UntypedStorage)


class Storages:
    """The storages of a state, each once, in the order in which they were found: tensors that share one keep sharing it."""

    def __init__(self):
        self.list = []
        self._index = {}

    def add(self, storage):
        """Returns the number of a storage."""
        found = self._index.get(storage._cdata)
        if found is None:
            found = self._index[storage._cdata] = len(self.list)
            self.list.append(storage)
        return found

    def add_run(self, tensor):
        """Returns the number of the bytes of a dense tensor, of which its storage may have more."""
        storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
        if size == storage.nbytes():
            return self.add(storage)
        first = tensor.storage_offset() * tensor.element_size()
        found = self._index.get((storage._cdata, first, size))
        if found is None:
            found = self._index[storage._cdata, first, size] = len(self.list)
            self.list.append(storage[first:first + size] if size else torch.UntypedStorage(0, device="cpu"))  # keeps the whole one alive
        return found

    def find(self, state):
        """Adds those of the tensors that lie openly in dicts, lists and tuples; the pickler finds the others."""
        waiting, seen = collections.deque([state]), set()
        plain = (torch.Tensor, torch.nn.Parameter)
        while waiting:
            obj = waiting.popleft()
            kind = type(obj)
            if kind in _FLAT:
                continue
            if kind in plain:
                if obj.layout is torch.strided and not obj.is_meta and not obj.is_quantized:
                    self.add(obj.untyped_storage())
            elif isinstance(obj, _CONTAINERS) and id(obj) not in seen:
                seen.add(id(obj))
                waiting.extend(obj.values() if isinstance(obj, dict) else obj)


class Numbered:
    """Gives the storages of one archive numbers of its own, in the order in which they are pickled."""

    def __init__(self, storages):
        self._storages, self._index = storages, {}
        self.order = []  # their numbers among all

    def add(self, storage):
        n = self._storages.add(storage)
        found = self._index.get(n)
        if found is None:
            found = self._index[n] = len(self.order)
            self.order.append(n)
        return found


# These are classes of the module: one that is made in a function is a cycle, and keeps what it refers to until it is collected.


class _Ref:
    """Stands for the storage of a tensor while that is pickled."""

    __slots__ = ("id",)

    def __init__(self, persistent_id):
        self.id = persistent_id


def _reduce_ordered(d):
    """What OrderedDict.__reduce__ says, without its long search for slots: each tensor has one for its hooks."""
    return d.__reduce__() if vars(d) else (collections.OrderedDict, (), None, None, iter(d.items()))


class _Pickler(pickle.Pickler):
    def __init__(self, out, storages):
        super().__init__(out, protocol=2)
        self.storages = storages
        self.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: self.reduce_tensor, collections.OrderedDict: _reduce_ordered}
        self.kinds = {}  # the class of a storage, by dtype
        self.places = {}  # where it is, by device
        self.dtypes = {}  # of the tensors that view a storage, by its key

    def key_of(self, storage, dtype):
        """Returns what names a storage. The format has one dtype for each."""
        key = str(self.storages.add(storage))
        if self.dtypes.setdefault(key, dtype) is not dtype and storage.nbytes():
            raise RuntimeError(
                f"cannot save tensors or storages that view the same data as different types, {self.dtypes[key]} and {dtype}: "
                "clone one of them")
        return key

    def reduce_tensor(self, t):
        """What Tensor.__reduce_ex__ says of a plain tensor, at a fraction of its time; it is asked about all others."""
        if t.layout is not torch.strided or t.is_quantized or t.is_meta or t.is_conj() or t.is_neg() or t.__dict__ or t._backward_hooks:
            return t.__reduce_ex__(2)
        dtype, device, storage = t.dtype, t.device, t.untyped_storage()
        kind = self.kinds.get(dtype)
        if kind is None:
            typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
            try:
                kind = getattr(torch, typed._pickle_storage_type())
            except (AttributeError, KeyError):  # a dtype that has no class: torch pickles it in another way
                return t.__reduce_ex__(2)
            self.kinds[dtype] = kind
        place = self.places.get(device)
        if place is None:
            place = self.places[device] = location_tag(storage)
        ref = _Ref(("storage", kind, self.key_of(storage, dtype), place, storage.nbytes() // t.element_size()))
        return torch._utils._rebuild_tensor_v2, (ref, t.storage_offset(), tuple(t.size()), t.stride(), t.requires_grad, collections.OrderedDict())

    def persistent_id(self, obj):
        if type(obj) is _Ref:
            return obj.id
        if not isinstance(obj, _STORAGES):  # it is asked about everything
            return None
        if isinstance(obj, torch.storage.TypedStorage):
            storage, dtype = obj._untyped_storage, obj.dtype
            kind, size = getattr(torch, obj._pickle_storage_type()), obj._size()
        else:
            storage, dtype = obj, torch.uint8
            kind, size = torch.storage.UntypedStorage, obj.nbytes()
        return "storage", kind, self.key_of(storage, dtype), location_tag(storage), size


def pickled(state, storages):
    """Returns the bytes of data.pkl as torch.save writes them (torch/serialization.py, _save), with the storages added."""
    out = io.BytesIO()
    _Pickler(out, storages).dump(state)
    return out.getvalue()


def _rebuild_tensor(storage, offset, size, stride, requires_grad, hooks, metadata=None):
    """What torch._utils._rebuild_tensor_v2 does, without asking for each tensor whether tensors are to be fake."""
    if hooks or metadata:
        return torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, metadata)
    bytes_ = storage._untyped_storage
    t = torch.empty(0, dtype=storage.dtype, device=bytes_.device).set_(bytes_, offset, size, stride)
    return t.requires_grad_() if requires_grad else t


@functools.lru_cache(maxsize=1 << 16)
def pickled_alone(dtype, size, stride):
    """Returns data.pkl of a dense tensor that has a storage to itself, in the memory of the host."""
    none = torch.empty(0, dtype=dtype, device="cpu")
    room = torch.UntypedStorage(size.numel() * none.element_size(), device="cpu")
    return pickled(none.set_(room, 0, size, stride), Storages())


class _Unpickler(pickle.Unpickler):
    def __init__(self, data, storage_of, map_location):
        super().__init__(io.BytesIO(data))
        self.storage_of, self.map_location, self.typed = storage_of, map_location, {}

    def find_class(self, module, name):
        return _rebuild_tensor if (module, name) == ("torch._utils", "_rebuild_tensor_v2") else super().find_class(module, name)

    def persistent_load(self, saved):
        if saved[0] != "storage":
            raise pickle.UnpicklingError(f"unknown persistent id {saved[0]!r}")
        _, kind, key, location, _ = saved
        found = self.typed.get(key)
        if found is None:
            dtype = torch.uint8 if kind is torch.storage.UntypedStorage else kind._dtype
            storage = _moved(self.storage_of(key), location, self.map_location)
            found = self.typed[key] = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        return found


def restored(data, storage_of, map_location=None):
    """Undoes pickled; storage_of returns the untyped storage of a key."""
    return _Unpickler(data, storage_of, map_location).load()


def _moved(storage, location, map_location):
    """Brings a storage to where map_location says, as torch.load does for a device; None leaves it in memory."""
    if map_location is None:
        return storage
    if callable(map_location):
        return map_location(storage, location) or storage
    if isinstance(map_location, dict):
        location = map_location.get(location, location)
    else:
        location = str(map_location)
    return torch.serialization.default_restore_location(storage, location)

"""A step that is restored: its files, in memory or on disk."""
import json
import mmap
import os
import threading
import weakref

import torch

from . import _copy, _state
from ._agent import AgentError
from ._files import archive_size

OWN = 64 << 10  # bytes; storages up to this are copied: an optimizer keeps small tensors, and with them whole copies of states


class _View(mmap.mmap):
    """A mapping that can be referred to weakly. Writing to it changes nothing but itself."""

    files = None  # {path: parts}, as the worker listed them that saved
    directory = ""  # the name that it gave the step's directory
    link = None  # muster leaves the slot alone as long as this is open


class Views:
    """The slots that this process looks at. One is let go when nothing refers to its view any more."""

    def __init__(self, link):
        self._link = link
        self._views = weakref.WeakValueDictionary()  # by slot
        self._made = {}  # how many views were made when a slot's newest was, by slot
        self._released = []  # slots whose views have gone, and which these were; the collector appends
        self._lock = threading.RLock()  # nothing is let go between muster's reply and the view

    def drop(self):
        """Tells muster of slots that are not looked at any more."""
        with self._lock:
            while self._released:
                slot, n = self._released.pop()
                if self._made[slot] == n:
                    self._link.ask("release", slot=slot)

    def holds(self, tensor):
        """Whether a tensor lies in memory that this process looks at."""
        at = tensor.data_ptr() if tensor.device.type == "cpu" else 0
        return any(0 <= at - torch.frombuffer(view, dtype=torch.uint8).data_ptr() < len(view) for view in list(self._views.values()))

    def ask(self, op, **fields):
        """Returns the reply, and a view where a slot came with it."""
        with self._lock:
            self.drop()
            reply, fd = self._link.ask(op, **fields)
            return reply, None if fd is None else self._view(reply, fd)

    def _view(self, reply, fd):
        slot = reply["slot"]
        try:
            view = self._views.get(slot)
            if view is None:
                view = _View(fd, reply["capacity"], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
                view.link = self._link
                n = self._made[slot] = 1 + max(self._made.values(), default=0)
                weakref.finalize(view, self._released.append, (slot, n)).atexit = False
                at = reply["meta_offset"]
                listed = json.loads(view[at:at + reply["meta_length"]])
                view.files, view.directory = {f["path"]: f["parts"] for f in [*listed["files"], *listed.get("aside", ())]}, listed["dir"]
                self._views[slot] = view
        finally:
            os.close(fd)
        return view


class MemoryStep:
    """Files in memory. Tensors that are loaded lie there as long as they are used."""

    source = "memory"

    def __init__(self, step, views, view):
        self.step, self._views, self._own = step, views, view
        self._other = view  # of the rank whose file was asked for last
        self.own = next(iter(view.files), "")  # the rank's first file
        self.names = list(view.files)  # all of the rank's files
        self.directory = view.directory or str(step)  # the name of the step's directory

    def _find(self, path):
        for view in (self._own, self._other):
            if path in view.files:
                return view
        _, self._other = self._views.ask("open", path=path)
        return self._other

    def exists(self, path):
        try:
            return bool(self._find(path))
        except AgentError:
            return False

    def load(self, path, map_location=None, weights_only=False):
        """Returns the object of a file that is one archive."""
        view = self._find(path)
        (part,) = view.files[path]
        return load_archive(view, part["archive"], map_location)

    def parts(self, path):
        """Returns a file's parts: a memoryview each, or a function of map_location that loads an archive's object."""
        view = self._find(path)
        parts = []
        for part in view.files[path]:
            if "archive" in part:
                parts.append(lambda map_location=None, records=part["archive"]: load_archive(view, records, map_location))
            else:
                at, size = part["bytes"]
                parts.append(memoryview(view)[at:at + size])
        return parts

    def paths(self):
        """Returns those of this rank's own files."""
        return list(self._own.files)

    def size(self, path):
        """Returns how many bytes of memory a file has."""
        return sum(part["bytes"][1] if "bytes" in part else sum(size for _, _, size in part["archive"]) for part in self._find(path).files[path])

    def give(self, optimizer):
        """Has an optimizer own what it restored: load_state_dict of an optimizer on the host keeps the tensors that it is given."""
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and self._views.holds(value):
                    state[key] = value.clone()

    def starts(self, path):
        """Returns where each of a file's parts begins in it."""
        starts, at = [], 0
        for part in self._find(path).files[path]:
            starts.append(at)
            at += archive_size([(name, size) for name, _, size in part["archive"]]) if "archive" in part else part["bytes"][1]
        return starts


class DiskStep:
    """Files on disk, or none."""

    def __init__(self, step=-1, root="", own=""):
        self.step, self.root, self.own = step, root, own
        self.source = "disk" if root else "none"

    def exists(self, path):
        return bool(self.root) and os.path.exists(os.path.join(self.root, path))

    def load(self, path, map_location=None, weights_only=False):
        return torch.load(os.path.join(self.root, path), map_location=map_location or "cpu", weights_only=weights_only)


def load_archive(view, records, map_location=None):
    """Undoes what made an archive: its tensors lie in the view, but for small ones."""
    places = {name: (offset, size) for name, offset, size in records}
    first, end = min(offset for offset, _ in places.values()), max(offset + size for offset, size in places.values())
    mapped = _copy.Populated(torch.frombuffer(view, dtype=torch.uint8)[first:end])

    def storage_of(key):
        offset, size = places["data/" + key]
        if not size:
            return torch.UntypedStorage(0)
        there = torch.frombuffer(view, dtype=torch.uint8, count=size, offset=offset)
        return (there.clone() if size <= OWN else there).untyped_storage()

    offset, size = places["data.pkl"]
    try:
        return _state.restored(view[offset:offset + size], storage_of, map_location)
    finally:
        mapped.wait()

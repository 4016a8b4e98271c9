"""What a rank's state becomes: files, each made of parts. In memory they lie as storages and, behind those, what was pickled;
muster puts them together when it writes them (checkpointd/records.go)."""
import torch

from . import _state


class Archive:
    """A part of a file: what torch.save makes of an object."""

    def __init__(self, obj):
        self.obj = obj


class Bytes:
    """A part of a file: bytes as they are, or those of a tensor without its shape."""

    def __init__(self, data):
        self.data = data if isinstance(data, (bytes, bytearray)) else data.detach().contiguous()

    def extra(self):
        """How many bytes lie besides the storages."""
        return len(self.data) if isinstance(self.data, (bytes, bytearray)) else 0


class TensorArchive:
    """A part of a file: what torch.save makes of a tensor that has its storage to itself, whatever storage it lies in."""

    def __init__(self, tensor):
        # What is sparse, quantized and the like has no such storage; it is made an archive of another kind by whoever saves it.
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
        self.tensor = tensor if tensor.numel() in (0, extent) else tensor.contiguous()
        self.pickled = _state.pickled_alone(self.tensor.dtype, self.tensor.shape, self.tensor.stride())

    def size(self):
        return archive_size([("data.pkl", len(self.pickled)), ("data/0", self.tensor.numel() * self.tensor.element_size())])


def archive_size(records):
    """Returns how many bytes an archive of [(name, bytes)] has in a file, data.pkl being first: checkpointd/zip.go lays it out."""
    large, at, directory = 0xFFFFFFFF, 0, 0
    records = [(len("archive/" + name), size) for name, size in [records[0], ("byteorder", 6), ("version", 2), *records[1:]]]
    for name, size in records:
        extra = (16 if size >= large else 0) + (8 if at >= large else 0)
        directory += 46 + name + (extra and extra + 4)
        head = 34 + name + (20 if size >= large else 0)
        at += head + -(at + head) % 64 + size
    return at + directory + (76 if max(at, directory) >= large or len(records) >= 0xFFFF else 0) + 22


class Plan:
    """The files of one rank, {path: [parts]}, on their way into memory. Those of aside are for memory alone, and are not written."""

    def __init__(self, files, directory="", trackers=(), spare=(), aside=None):
        self._aside = aside or {}
        files = {**files, **self._aside}
        self.files, self.head = files, {"dir": directory, "trackers": [list(t) for t in trackers], "spare": list(spare)}
        self.storages = _state.Storages()
        self.extra = 0
        for part in self._parts():
            if isinstance(part, Archive):
                self.storages.find(part.obj)
            elif isinstance(part, TensorArchive):
                self.storages.add_run(part.tensor)
                self.extra += len(part.pickled)
            else:
                self.extra += part.extra()
                if isinstance(part.data, torch.Tensor):
                    self.storages.add(part.data.untyped_storage())
        self._pickles = []

    def _parts(self):
        return (part for parts in self.files.values() for part in parts)

    def pickle(self):
        """Pickles all archives; storages that were not found before are added."""
        self._pickles = []
        for part in self._parts():
            if isinstance(part, Archive):
                numbered = _state.Numbered(self.storages)
                self._pickles.append((_state.pickled(part.obj, numbered), numbered.order))

    def listed(self, offsets, end):
        """Returns what lies behind the storages, and the list of files, for storages that lie at offsets and end there."""
        behind, files, aside, pickles = bytearray(), [], [], iter(self._pickles)

        def put(data):
            at = [end + len(behind), len(data)]
            behind.extend(data)
            return at

        for path, parts in self.files.items():
            listed = []
            for part in parts:
                if isinstance(part, Archive):
                    pickled, order = next(pickles)
                    records = [["data.pkl", *put(pickled)]]
                    records += [[f"data/{i}", offsets[n], self.storages.list[n].nbytes()] for i, n in enumerate(order)]
                    listed.append({"archive": records})
                elif isinstance(part, TensorArchive):
                    n = self.storages.add_run(part.tensor)
                    listed.append({"archive": [["data.pkl", *put(part.pickled)], ["data/0", offsets[n], self.storages.list[n].nbytes()]]})
                elif isinstance(part.data, torch.Tensor):
                    t = part.data
                    at = offsets[self.storages.add(t.untyped_storage())] + t.storage_offset() * t.element_size()
                    listed.append({"bytes": [at, t.numel() * t.element_size()]})
                else:
                    listed.append({"bytes": put(part.data)})
            (aside if path in self._aside else files).append({"path": path, "parts": listed})
        return bytes(behind), {"files": files, "aside": aside, **self.head}

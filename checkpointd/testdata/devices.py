"""Copies storages of two devices that lie mixed with those of the host, through everything but CUDA itself. usage: devices.py"""
import contextlib
import random

import torch
from muster.checkpoint import _copy

ended = []


class Stream:
    def __init__(self, device):
        self.device = device

    def wait_stream(self, other):
        assert other == ("current", self.device)

    def synchronize(self):
        ended.append(self.device)


class Storage(torch.UntypedStorage):
    """One that says that it is elsewhere."""

    number = 0

    @property
    def device(self):
        return torch.device("cpu", self.number)


torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.stream = lambda stream: contextlib.nullcontext()
torch.cuda.current_stream = lambda device: ("current", device)
torch.cuda.Stream = Stream
plain = torch.empty


def scarce(*args, **kwargs):
    if args[0]:
        raise torch.cuda.OutOfMemoryError("none left")
    return plain(*args, **kwargs)


def check(name, owners, sizes):
    """Lays out storages as a save does; owner 0 is the host, which has copied before the devices do."""
    at, jobs, places = 0, [], []
    for size in sizes:
        owner = random.choice(owners)
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        storage = Storage(size)
        torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,)).copy_(data)
        storage.number = owner
        places.append((at, data, owner))
        if owner and size:
            jobs.append((at, storage))
        at += -(-size // _copy.ALIGN) * _copy.ALIGN
    whole = torch.full((at,), 7, dtype=torch.uint8)
    for offset, data, owner in places:
        if not owner:
            whole[offset:offset + len(data)] = data
    random.shuffle(jobs)
    torch.empty = scarce if "scarce" in name else plain
    copy = _copy.DeviceCopy(whole)
    copy.begin(jobs)
    torch.empty = plain
    assert copy._kept
    copy.finish()
    assert not copy._kept and len(ended) == len({storage.device for _, storage in jobs}), ended
    ended.clear()
    for offset, data, owner in places:
        assert torch.equal(whole[offset:offset + len(data)], data), (name, offset, len(data), owner)
    print(name)


random.seed(3)
small = [random.choice((0, 1, 4, 200, 255, 256, 257, 4096, 70_000)) for _ in range(300)]
check("one device", [1], small)
check("two devices and the host", [0, 1, 2], small)
check("large ones between", [0, 1], [random.choice((4, 900_000, 1 << 20, (1 << 20) + 1, 3_000_001)) for _ in range(120)])
check("memory is scarce", [0, 1, 2], small)

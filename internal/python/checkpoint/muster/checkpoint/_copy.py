"""Copies storages into a mapping: by threads from the memory of the host, by a stream of its own from CUDA devices."""
import ctypes
import os
import sys
import threading

import torch

from . import _place, _threads

PIECE = 16 << 20  # what a thread copies before it looks for more
STREAMED = 192 << 20  # from a block of some such size on memmove does not read what it overwrites, and takes two thirds of the time
SMALL = 64 << 10  # storages below this are copied without letting go of the interpreter
COALESCE = 1 << 20  # storages on a device up to this go there through one buffer, many at once
GATHERED = 32 << 20  # what such a buffer has at most
PAGE = 4 << 10
ALIGN = 256  # where a storage begins in the mapping: less than that between two is nobody's

_libc = ctypes.CDLL(None)
memmove = _libc.memmove  # lets go of the interpreter's lock
memmove.argtypes, memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
_held = ctypes.PyDLL(None).memmove  # keeps the interpreter's lock
_held.argtypes, _held.restype = memmove.argtypes, memmove.restype

_MADV_POPULATE_WRITE = 23
_madvise = _libc.madvise
_madvise.argtypes, _madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int

STEP = 32 << 20  # what populate has mapped at once
AROUND = 64 << 10  # the kernel maps so much of a file around what is read


def populate(address, size):
    """Maps pages before they are written. Kernels before 5.14 cannot: then the first use does it."""
    for at in range(0, size, STEP):
        if _madvise(address + at, min(STEP, size - at), _MADV_POPULATE_WRITE):
            return


class Populated:
    """Has the pages of a tensor of bytes mapped to be read, by threads; wait returns when they are.

    A byte of each 64 KiB is read: madvise takes half as long again, since it looks at each page.
    """

    def __init__(self, whole):
        threads = max(1, helpers())
        part = -(-len(whole) // (threads * AROUND)) * AROUND
        self._threads = [
            _threads.start("muster-populate", whole[at:at + part:AROUND].sum) for at in range(0, len(whole), part)
        ]

    def wait(self):
        for thread in self._threads:
            thread.join()


def pieces(jobs, threads):
    """Cuts [(destination, source, size)] into what one of so many threads copies at once.

    Blocks that memmove streams stay so large where each thread gets one of them. They come first: the small ones fill what is left.
    """
    whole = threads <= sum(size // STREAMED for _, _, size in jobs)
    cut = []
    for to, source, size in sorted(jobs, key=lambda job: -job[2]) if whole else jobs:
        piece, count = PIECE, size // STREAMED
        if whole and count:
            count -= count % threads if count > threads else 0  # so that all are done at once
            piece = -(-size // count // PAGE) * PAGE
        cut += [(to + at, source + at, min(piece, size - at)) for at in range(0, size, piece)]
    return cut


class Copy:
    """Copies [(destination, source, size)] in the background; finish helps, and waits until all is done, that of devices too."""

    def __init__(self, jobs, helpers):
        self.devices = None  # a DeviceCopy
        self._small = [job for job in jobs if job[2] <= SMALL]
        self._pieces = pieces([job for job in jobs if job[2] > SMALL], helpers + 1)
        self._lock, self._next = threading.Lock(), 0
        self._interval = sys.getswitchinterval()
        helpers = min(helpers, len(self._pieces))
        if helpers:
            sys.setswitchinterval(1e-4)  # whoever has copied a piece does not wait for long until it may ask for the next
        self._threads = []
        for _ in range(helpers):
            try:
                self._threads.append(_threads.start("muster-copy", self._work))
            except RuntimeError:  # there are no more to be had
                break

    def _work(self):
        while True:
            with self._lock:
                at = self._next
                self._next += 1
            if at >= len(self._pieces):
                return
            memmove(*self._pieces[at])

    def finish(self):
        try:
            for job in self._small:
                _held(*job)
            self._work()
        finally:
            for thread in self._threads:
                thread.join()
            sys.setswitchinterval(self._interval)
            if self.devices is not None:
                self.devices.finish()


def helpers():
    """How many threads help the one that saves: the node's processors are shared by its workers."""
    share = len(os.sched_getaffinity(0)) // max(1, _place.local_world())
    return max(1, min(4, share) - 1) if (os.cpu_count() or 1) > 1 else 0


class Registered:
    """A mapping that CUDA may write to directly. It is registered once; where that fails copies are slower."""

    def __init__(self, address, size):
        self._address = address
        try:
            self.ok = int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0
        except Exception:  # a build without it, or a runtime that does not know it
            self.ok = False

    def close(self):
        if self.ok:
            torch.cuda.cudart().cudaHostUnregister(self._address)
            self.ok = False


_streams = {}  # one for each device: memory that a stream has used is kept for it


class DeviceCopy:
    """Copies storages of CUDA devices into whole, a uint8 tensor over the mapping, behind the caller; finish waits for it."""

    def __init__(self, whole):
        self._whole = whole
        self._streams = []
        self._kept = []  # until the copies are done

    def begin(self, jobs):
        """Copies [(offset, storage)]."""
        for device in {storage.device for _, storage in jobs}:
            with torch.cuda.device(device):
                stream = _streams.get(device)
                if stream is None:
                    stream = _streams[device] = torch.cuda.Stream(device)
                stream.wait_stream(torch.cuda.current_stream(device))
                self._streams.append(stream)
                with torch.cuda.stream(stream):
                    self._enqueue(sorted((job for job in jobs if job[1].device == device), key=lambda job: job[0]))

    def _enqueue(self, jobs):
        run = []  # small ones that lie side by side
        for offset, storage in jobs:
            size = storage.nbytes()
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))
            if run and (offset - (run[-1][0] + run[-1][1].numel()) >= ALIGN or offset + size - run[0][0] > GATHERED):
                self._gather(run)
                run = []
            if size <= COALESCE:
                run.append((offset, source))
            else:
                self._copy(offset, source)
        if run:
            self._gather(run)

    def _gather(self, run):
        first, end = run[0][0], run[-1][0] + run[-1][1].numel()
        try:
            buffer = torch.empty(end - first, dtype=torch.uint8, device=run[0][1].device)
        except torch.cuda.OutOfMemoryError:  # the training needs it all
            for offset, source in run:
                self._copy(offset, source)
            return
        torch._foreach_copy_([buffer[at - first:at - first + source.numel()] for at, source in run], [source for _, source in run])
        self._copy(first, buffer)

    def _copy(self, offset, source):
        self._whole[offset:offset + source.numel()].copy_(source, non_blocking=True)
        self._kept.append(source)

    def finish(self):
        for stream in self._streams:
            stream.synchronize()
        self._kept = []

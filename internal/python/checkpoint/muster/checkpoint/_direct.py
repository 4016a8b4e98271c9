"""Checkpoints without muster: written at once, found again by DLRover's tracker."""
import ctypes
import io
import os

import torch

from ._files import Archive
from ._restore import DiskStep

TRACKER = "dlrover_latest.txt"


def write_file(path, parts):
    """Writes a file of parts, so that path is there whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def write(f):
        for part in parts:
            if not isinstance(part, Archive):
                f.write(part.data if isinstance(part.data, (bytes, bytearray)) else _bytes_of(part.data))
            elif len(parts) == 1:
                torch.save(part.obj, f)
            else:  # offsets in an archive count from its own beginning
                out = io.BytesIO()
                torch.save(part.obj, out)
                f.write(out.getbuffer())

    _replace(path, write)
    _sync(os.path.dirname(path))


def _bytes_of(tensor):
    size = tensor.numel() * tensor.element_size()
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), size)


def _replace(path, write):
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.muster-{os.getpid()}")
    try:
        with open(temporary, "xb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _sync(directory):
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def barrier():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def track(directory, step, trackers=()):
    """Names the newest step. Called by one rank when all have written."""
    for name, text in [*trackers, (TRACKER, str(step))]:
        _replace(os.path.join(directory, name), lambda f, text=text: f.write(text.encode()))
    _sync(directory)


def latest(directory):
    """Returns the step of the tracker, -1 for none."""
    try:
        with open(os.path.join(directory, TRACKER)) as f:
            return int(f.read())
    except (FileNotFoundError, ValueError):
        return -1


def newest(directory, own):
    """Returns the newest step, where own is a rank's file."""
    step = latest(directory)
    root = os.path.join(directory, str(step))
    return DiskStep(step, root, os.path.join(root, own)) if step >= 0 else DiskStep()

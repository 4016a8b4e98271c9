"""Names of DLRover's module that scripts and its own metadata refer to."""
import dataclasses
import io
import os

from muster.checkpoint import ShardedCheckpointer, StorageType
from muster.checkpoint._checkpointer import unread
from muster.checkpoint._dcp import DiskReader as FileReader
from muster.checkpoint._dcp import MemoryReader as SharedMemoryReader

__all__ = ["FileReader", "FsdpCheckpointEngine", "SharedMemoryReader", "SlicedBufferedReader"]


@dataclasses.dataclass
class _StorageInfo:
    """Where a tensor lies in a file that DLRover wrote: the class that its .metadata names."""

    relative_path: str
    offset: int
    length: int


class SlicedBufferedReader(io.BufferedReader):
    """A part of a file, as a file."""

    def __init__(self, base_stream, offset, len):
        super().__init__(base_stream)
        self.offset, self.len = offset, len
        self.seek(0)

    def seek(self, offset, whence=os.SEEK_SET):
        if whence == os.SEEK_CUR:
            return super().seek(offset, whence) - self.offset
        return super().seek(self.offset + offset + (self.len if whence == os.SEEK_END else 0)) - self.offset

    def tell(self):
        return super().tell() - self.offset

    def read(self, size=-1):
        left = max(0, self.len - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


class FsdpCheckpointEngine:
    """What FsdpShardCheckpointer of DLRover is made of. paths is {"model_states": directory}."""

    def __init__(self, checkpoint_dir, storage=None, comm_backend="", save_timeout=600):
        unread(comm_backend, save_timeout)
        self.checkpoint_dir = checkpoint_dir
        self._checkpointer = ShardedCheckpointer(checkpoint_dir)

    def save_to_memory(self, step, state_dict, paths):
        return self._checkpointer.save_checkpoint(step, state_dict, paths["model_states"], StorageType.MEMORY)

    def save_to_storage(self, step, state_dict, paths):
        return self._checkpointer.save_checkpoint(step, state_dict, paths["model_states"], StorageType.DISK)

    def load(self, resume_path=""):
        return self._checkpointer.reader(resume_path)

    def wait_latest_checkpoint(self, timeout=1800):
        return self._checkpointer.wait_latest_checkpoint(timeout)

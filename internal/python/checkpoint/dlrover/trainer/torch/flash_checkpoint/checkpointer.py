import abc

from muster.checkpoint import StorageType

__all__ = ["Checkpointer", "StorageType"]


class Checkpointer(abc.ABC):
    @abc.abstractmethod
    def save_checkpoint(self, step, state_dict, path, storage_type=StorageType.DISK):
        """Keeps a state as that of a step."""

    @abc.abstractmethod
    def load_checkpoint(self, resuming_path=None):
        """Returns the newest state."""

from dlrover.python.common.storage import rules_of
from dlrover.trainer.torch.flash_checkpoint.checkpointer import Checkpointer
from muster.checkpoint import Checkpointer as _MusterCheckpointer
from muster.checkpoint import StorageType
from muster.checkpoint._checkpointer import unread

__all__ = ["DdpCheckpointer", "StorageType"]


class DdpCheckpointer(Checkpointer):
    """DLRover's checkpointer for DistributedDataParallel, kept by muster.

    Up to version 0.3.6 the second argument was a storage; one is taken, and not used: muster writes the files.
    """

    def __init__(self, checkpoint_dir, local_shard_num=1, global_shard_num=1, comm_backend="", deletion_strategy=None,
                 save_timeout=600, replica_count=0, storage=None):
        if local_shard_num is not None and not isinstance(local_shard_num, int):
            local_shard_num, storage = 1, local_shard_num
        unread(comm_backend, save_timeout, local_shard_num, global_shard_num)
        self.checkpoint_dir = checkpoint_dir
        self._checkpointer = _MusterCheckpointer(checkpoint_dir, shards=global_shard_num, replicas=replica_count or 0, **rules_of(deletion_strategy, storage))

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        return self._checkpointer.save_checkpoint(step, state_dict, path, storage_type)

    def load_checkpoint(self, resume_path=""):
        """Returns the newest state in memory, else that of resume_path, else the newest on disk; {} where there is none."""
        return self._checkpointer.load_checkpoint(resume_path=resume_path)

    def wait_latest_checkpoint(self, timeout=1800):
        return self._checkpointer.wait_latest_checkpoint(timeout)

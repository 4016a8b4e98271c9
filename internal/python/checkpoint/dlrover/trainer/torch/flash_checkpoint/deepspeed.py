from dlrover.python.common.storage import rules_of
from muster.checkpoint._checkpointer import unread
from muster.checkpoint.deepspeed import AsyncCheckpointAgent, StorageType
from muster.checkpoint.deepspeed import DeepSpeedCheckpointer as _DeepSpeedCheckpointer

__all__ = ["AsyncCheckpointAgent", "DeepSpeedCheckpointer", "StorageType"]


class DeepSpeedCheckpointer(_DeepSpeedCheckpointer):
    """DLRover's checkpointer for DeepSpeed, kept by muster."""

    def __init__(self, engine, checkpoint_dir, comm_backend="", deletion_strategy=None, save_timeout=600):
        unread(comm_backend, save_timeout)
        super().__init__(engine, checkpoint_dir, **rules_of(deletion_strategy))
        self.checkpoint_dir = checkpoint_dir

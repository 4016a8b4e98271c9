"""Which checkpoints stay on disk, in the words of DLRover's package (specification: its 0.6.1, python/common/storage.py)."""
import abc
import logging


class CheckpointDeletionStrategy(abc.ABC):
    @abc.abstractmethod
    def clean_up(self, step, delete_func):
        """Would remove old steps. muster removes them itself, by the numbers of the two strategies below."""


class KeepStepIntervalStrategy(CheckpointDeletionStrategy):
    """Keeps the newest step, and those that are multiples of keep_interval."""

    def __init__(self, keep_interval, checkpoint_dir):
        self.keep_interval, self.checkpoint_dir = int(keep_interval), checkpoint_dir

    def clean_up(self, step, delete_func):
        pass


class KeepLatestStepStrategy(CheckpointDeletionStrategy):
    """Keeps the newest max_to_keep steps."""

    def __init__(self, max_to_keep, checkpoint_dir):
        self.max_to_keep, self.checkpoint_dir = int(max_to_keep), checkpoint_dir

    def clean_up(self, step, delete_func):
        pass


def keep_rules(strategy, storage=None):
    """Returns what a strategy means to muster, keep and keep_every of a Checkpointer. Says what has no meaning to it."""
    log = logging.getLogger("muster.checkpoint")
    if storage is not None:
        log.warning("the storage %s is not used: muster writes checkpoints itself", type(storage).__name__)
    if isinstance(strategy, KeepLatestStepStrategy):
        return strategy.max_to_keep, 0
    if isinstance(strategy, KeepStepIntervalStrategy):
        return 1, strategy.keep_interval
    if strategy and not isinstance(strategy, str):  # text is what older releases had in that place, a backend
        log.warning("the strategy %s is not used: all steps stay on disk", type(strategy).__name__)
    return 0, 0

"""What reads and writes files, and which checkpoints stay on disk, in the words of DLRover's package (specification: its 0.6.1,
python/common/storage.py). muster writes checkpoints itself: of a storage, only the strategy counts that it was made with."""
import abc
import logging
import os
import shutil

TRACKER = "dlrover_latest.txt"


class ClassMeta:
    """What makes an object of a class in another process."""

    def __init__(self, module_path="", class_name="", kwargs=None):
        self.module_path, self.class_name, self.kwargs = module_path, class_name, kwargs or {}


class CheckpointStorage(abc.ABC):
    """Where checkpoints are written."""

    @abc.abstractmethod
    def write(self, content, path):
        """Writes str or bytes to a file."""

    @abc.abstractmethod
    def write_state_dict(self, state_dict, path, write_func):
        """Has write_func(state_dict, path) write a state."""

    @abc.abstractmethod
    def read(self, path):
        """Returns a file's content, "" where there is none."""

    @abc.abstractmethod
    def read_state_dict(self, path, read_func):
        """Returns read_func(path), {} where there is no file."""

    @abc.abstractmethod
    def safe_rmtree(self, dir):
        """Removes a directory, if it is there."""

    @abc.abstractmethod
    def safe_remove(self, path):
        """Removes a file, if it is there."""

    @abc.abstractmethod
    def safe_makedirs(self, dir):
        """Makes a directory, unless it is there."""

    @abc.abstractmethod
    def safe_move(self, src_path, dst_path):
        """Moves a file or directory, unless something has the new name."""

    @abc.abstractmethod
    def commit(self, step, success):
        """Is told that a step has been written, or has not."""

    @abc.abstractmethod
    def exists(self, path):
        """Says whether there is a file or directory."""

    @abc.abstractmethod
    def listdir(self, path):
        """Returns the names in a directory."""

    @abc.abstractmethod
    def get_class_meta(self):
        """Returns what makes the same storage in another process."""


class PosixDiskStorage(CheckpointStorage):
    """A file system."""

    def write(self, content, path):
        with open(path, "w" if isinstance(content, str) else "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())

    def write_state_dict(self, state_dict, path, write_func=None):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if write_func:
            write_func(state_dict, path)

    def read(self, path, mode="r"):
        if not os.path.exists(path):
            return ""
        with open(path, mode) as f:
            return f.read()

    def read_state_dict(self, path, read_func):
        return read_func(path) if read_func and os.path.exists(path) else {}

    def safe_rmtree(self, dir):
        shutil.rmtree(dir, ignore_errors=True)

    def safe_remove(self, path):
        if os.path.exists(path):
            os.remove(path)

    def safe_makedirs(self, dir):
        os.makedirs(dir, exist_ok=True)

    def safe_move(self, src_path, dst_path):
        if os.path.exists(src_path) and not os.path.exists(dst_path):
            shutil.move(src_path, dst_path)

    def commit(self, step, success):
        pass

    def exists(self, path):
        return os.path.exists(path)

    def listdir(self, path):
        return os.listdir(path)

    def get_class_meta(self):
        return ClassMeta(type(self).__module__, type(self).__name__)


class PosixStorageWithDeletion(PosixDiskStorage):
    """A file system from which a strategy removes old steps. It learns of them by what is written to the tracker file."""

    def __init__(self, tracker_file, deletion_strategy):
        self.tracker_file, self.deletion_strategy = tracker_file, deletion_strategy
        self._before = 0

    def write(self, content, path):
        if str(path).endswith(self.tracker_file):
            self._before = int(self.read(path) or self._before)
        super().write(content, path)

    def commit(self, step, success):
        if success and self._before not in (0, step):
            self.deletion_strategy.clean_up(self._before, shutil.rmtree)

    def get_class_meta(self):
        meta = super().get_class_meta()
        meta.kwargs = {"tracker_file": self.tracker_file, "deletion_strategy": self.deletion_strategy}
        return meta


def get_checkpoint_storage(deletion_strategy=None):
    return PosixStorageWithDeletion(TRACKER, deletion_strategy) if deletion_strategy else PosixDiskStorage()


class CheckpointDeletionStrategy(abc.ABC):
    """Says which steps go. muster follows the two below by itself; others are asked when a newer step is on disk."""

    @abc.abstractmethod
    def clean_up(self, step, delete_func):
        """Is told of a step that is not the newest any more; delete_func removes the directory of a step."""


class KeepStepIntervalStrategy(CheckpointDeletionStrategy):
    """Keeps the newest step, and those that are multiples of keep_interval."""

    name = str  # of the directory of a step

    def __init__(self, keep_interval, checkpoint_dir):
        self.keep_interval, self.checkpoint_dir = int(keep_interval), checkpoint_dir

    def clean_up(self, step, delete_func):
        if step % self.keep_interval:
            delete_func(os.path.join(self.checkpoint_dir, self.name(step)))


class KeepLatestStepStrategy(CheckpointDeletionStrategy):
    """Keeps the newest max_to_keep steps."""

    name = str

    def __init__(self, max_to_keep, checkpoint_dir):
        self.max_to_keep, self.checkpoint_dir = max(1, int(max_to_keep)), checkpoint_dir
        self._older = []

    def clean_up(self, step, delete_func):
        self._older.append(step)
        if len(self._older) >= self.max_to_keep:
            delete_func(os.path.join(self.checkpoint_dir, self.name(self._older.pop(0))))


def rules_of(strategy, storage=None):
    """Returns what a strategy, or that of a storage, means to muster: keep, keep_every and strategy of a Checkpointer."""
    if isinstance(storage, PosixStorageWithDeletion):
        strategy = strategy or storage.deletion_strategy
    elif storage is not None and type(storage) is not PosixDiskStorage:
        logging.getLogger("muster.checkpoint").warning("the storage %s is not used: muster writes checkpoints itself", type(storage).__name__)
    ours = getattr(type(strategy), "clean_up", None)
    if ours is KeepLatestStepStrategy.clean_up:
        return {"keep": strategy.max_to_keep}
    if ours is KeepStepIntervalStrategy.clean_up:
        return {"keep": 1, "keep_every": strategy.keep_interval}
    if not strategy or isinstance(strategy, str):  # text is what older releases had in that place, a backend
        return {}
    return {"strategy": strategy}

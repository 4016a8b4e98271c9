"""Which steps stay on disk, said in DLRover's words. Prints one line for each case; an exception ends it."""
import os
import sys

import torch

from dlrover.python.common.storage import (CheckpointDeletionStrategy, KeepLatestStepStrategy, KeepStepIntervalStrategy, PosixDiskStorage,
                                           PosixStorageWithDeletion, get_checkpoint_storage)
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

root = sys.argv[1]


def steps(directory):
    return sorted(int(name) for name in os.listdir(directory) if name.isdigit())


def save(directory, numbers, path="", **options):
    checkpointer = DdpCheckpointer(directory, **options)
    for step in numbers:
        checkpointer.save_checkpoint(step, {"step": step}, path.format(step))
        assert checkpointer.wait_latest_checkpoint(60) == step


class OddStays(CheckpointDeletionStrategy):
    """A user's: even steps go, and whatever else it tries is refused."""

    def __init__(self, directory, name="{}"):
        self.directory, self.name, self.told = directory, name, []

    def clean_up(self, step, delete_func):
        self.told.append(step)
        if step % 2 == 0:
            delete_func(os.path.join(self.directory, self.name.format(step)))
        for path in (root, self.directory, os.path.join(self.directory, str(max(steps(self.directory), default=0))), outside):
            delete_func(path)


outside = os.path.join(root, "7")
os.makedirs(outside)
for name, muster in (("with", True), ("without", False)):
    if not muster:
        del os.environ["MUSTER_SOCKET"]
    directory = os.path.join(root, name)
    strategy = OddStays(directory)
    save(directory, range(1, 7), deletion_strategy=strategy)
    assert strategy.told == [1, 2, 3, 4, 5] and steps(directory) == [1, 3, 5, 6], (strategy.told, steps(directory))
    strategy = OddStays(directory)  # in the next job, what is newest when it begins is told of
    save(directory, [8], deletion_strategy=strategy)
    assert strategy.told == [6] and steps(directory) == [1, 3, 5, 8] and os.path.exists(outside)
    print("user's strategy", name, flush=True)
    if muster:
        paths = directory + " paths"
        strategy = OddStays(paths, "checkpoint-{}.pt")
        save(paths, range(1, 5), paths + "/checkpoint-{}.pt", deletion_strategy=strategy)
        assert sorted(n for n in os.listdir(paths) if n.startswith("checkpoint")) == [f"checkpoint-{n}.pt" for n in (1, 3, 4)]
        latest = directory + " latest"
        save(latest, range(1, 6), storage=get_checkpoint_storage(KeepLatestStepStrategy(2, latest)))
        assert steps(latest) == [4, 5], steps(latest)
        every = directory + " every"
        save(every, range(1, 8), deletion_strategy=KeepStepIntervalStrategy(3, every))
        assert steps(every) == [3, 6, 7], steps(every)
        print("DLRover's strategies", flush=True)

# The storage by itself, and its strategies with a function of the user's.
storage = PosixDiskStorage()
path = os.path.join(root, "files", "a", "state.pt")
storage.write_state_dict({"x": 1}, path, torch.save)
assert storage.read_state_dict(path, torch.load) == {"x": 1} and storage.read_state_dict(path + "?", torch.load) == {}
storage.safe_move(path, path + "2")
storage.write(b"\0", path)
assert storage.read(path, "rb") == b"\0" and storage.read(path + "?") == "" and storage.listdir(os.path.dirname(path)) and storage.exists(path)
storage.safe_remove(path)
storage.safe_remove(path)
storage.safe_rmtree(os.path.join(root, "files", "a"))
assert not storage.exists(os.path.dirname(path))
directory = os.path.join(root, "files")
storage = PosixStorageWithDeletion("tracker.txt", KeepLatestStepStrategy(2, directory))
for step in range(1, 5):
    storage.safe_makedirs(os.path.join(directory, str(step)))
    storage.write(str(step), os.path.join(directory, "tracker.txt"))
    storage.commit(step, step != 4)
assert steps(directory) == [2, 3, 4], steps(directory)
meta = storage.get_class_meta()
assert (meta.class_name, set(meta.kwargs)) == ("PosixStorageWithDeletion", {"tracker_file", "deletion_strategy"})
print("storage", flush=True)

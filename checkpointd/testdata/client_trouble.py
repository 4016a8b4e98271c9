"""What the client does where something goes wrong. Prints one line for each case; an exception ends it."""
import errno
import gc
import mmap
import os
import sys

import torch

from muster.checkpoint import Archive, Bytes, Checkpointer, StorageType
from muster.checkpoint import _checkpointer

directory = sys.argv[1]
MEMORY = StorageType.MEMORY


def full(value):
    return {"x": torch.full((100_000,), float(value))}


def refused(call, word):
    try:
        call()
    except (RuntimeError, OSError) as e:
        assert word in str(e), e
    else:
        raise SystemExit(f"nothing was said of {word}")


# What is looked at stays, when the Checkpointer that loaded it has gone, too. Another one saves on.
a = os.path.join(directory, "a")
c = Checkpointer(a)
c.save_checkpoint(1, full(1), storage_type=MEMORY)
del c
gc.collect()
state = Checkpointer(a).load_checkpoint()
gc.collect()
c = Checkpointer(a)
for step in range(2, 8):
    assert c.save_checkpoint(step, full(step), storage_type=MEMORY)
    assert bool((state["x"] == 1).all()), step
del state
print("kept without its Checkpointer", flush=True)

# A view that goes while the same slot is looked at anew does not take the new one with it.
held, ask = [c.load_checkpoint()], c._views._link.ask


def lets_go(op, **fields):
    reply = ask(op, **fields)
    if op == "load":
        held.clear()
    return reply


c._views._link.ask = lets_go
state = c.load_checkpoint()
del c._views._link.ask
for step in range(8, 14):
    assert c.save_checkpoint(step, full(step), storage_type=MEMORY)
    assert bool((state["x"] == 7).all()), step
del state
print("kept what was looked at anew", flush=True)

# Small tensors do not keep a copy; what they share they share still.
small = torch.zeros(9)
c.save_checkpoint(14, {"small": small, "tail": small[3:], **full(14)}, storage_type=MEMORY)
state = c.load_checkpoint()
assert c._views.holds(state["x"]) and not c._views.holds(state["small"])
state["small"][3] = 5
assert state["tail"][0] == 5
del state["x"]
assert len(c._views._views) == 0
print("let go of small ones", flush=True)

# One storage with several dtypes is refused, as by torch.save; nothing is harmed.
z, x = torch.zeros(4, dtype=torch.cfloat), torch.arange(4.0)
for bad in ({"z": z, "real": torch.view_as_real(z)}, [x, x.view(torch.uint8)], [x, x.untyped_storage()], [x.view(torch.int32).storage(), x]):
    refused(lambda: c.save_checkpoint(15, bad, storage_type=MEMORY), "clone")
empty = torch.empty(0)
assert c.save_checkpoint(16, [x, x.untyped_storage()[:4], x.view(4, 1), empty, empty.view(torch.int32)], storage_type=MEMORY)
assert c.save_files(17, {"a": [Archive(x)], "b": [Archive(x.view(torch.uint8))]}, storage_type=MEMORY)
found = c.load_files()
assert torch.equal(found.load("b"), x.view(torch.uint8)) and torch.equal(found.load("a"), x)
del found
print("refused several dtypes", flush=True)

# A save that fails is told, whoever asks muster next.
for call in ("wait", "load", "save"):
    c = Checkpointer(os.path.join(directory, call))
    c.save_files(1, {"../x": [Bytes(b"")]}, storage_type=MEMORY)
    c._prepare(1 << 20)
    c._background.join()
    calls = {"wait": c.wait_latest_checkpoint, "load": c.load_checkpoint, "save": lambda: c.save_checkpoint(2, full(2), storage_type=MEMORY)}
    refused(calls[call], "../x")
    assert c.save_checkpoint(3, full(3), storage_type=MEMORY) and torch.equal(c.load_checkpoint()["x"], full(3)["x"]), call
print("told of a failed save", flush=True)

# An interrupt while muster is asked does not leave its reply to whoever asks next.
c = Checkpointer(os.path.join(directory, "interrupted"))
c.save_checkpoint(1, full(1), storage_type=MEMORY)
receive = c._link._receive


def interrupted(size):
    c._link._receive = receive
    raise KeyboardInterrupt


for call in (lambda: c.save_checkpoint(2, full(2), storage_type=MEMORY), lambda: c.wait_latest_checkpoint()):
    c._background.join()
    c._link.settle()
    c._link._receive = interrupted
    try:
        call()
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("there was no interrupt")
    refused(lambda: c.save_checkpoint(3, full(3), storage_type=MEMORY), "interrupted")
    c = Checkpointer(c.directory)
    receive = c._link._receive
    assert torch.equal(c.load_checkpoint()["x"], full(1)["x"]) and c.step == 1, c.step
assert c.save_checkpoint(4, full(4), storage_type=MEMORY) and torch.equal(c.load_checkpoint()["x"], full(4)["x"])
print("interrupted", flush=True)

# Memory that cannot be mapped is not kept from later saves.


class NoMemory:
    """The module mmap, in a process that has no room."""

    def __getattr__(self, name):
        return getattr(mmap, name)

    def mmap(self, *_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


c = Checkpointer(os.path.join(directory, "nomemory"))
c._background.join()
_checkpointer.mmap = NoMemory()
for step in range(4):
    refused(lambda: c.save_checkpoint(step, full(step), storage_type=MEMORY), "allocate")
_checkpointer.mmap = mmap
assert c.save_checkpoint(5, full(5), storage_type=MEMORY) and torch.equal(c.load_checkpoint()["x"], full(5)["x"])
print("mapped again", flush=True)

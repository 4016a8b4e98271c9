"""Saves and restores a state of GPT-2's shapes, through muster and in the ways that it is compared with, and writes the times
of each, in seconds, to BENCH_DIR/<rank>.json; agent is muster's memory besides that of checkpoints, in MB.
usage: flash_checkpoint.py MIB [first]; first: only the first save of the job"""
import json
import os
import shutil
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from flash_state import State
from muster.checkpoint import Checkpointer, StorageType, _copy

rank = int(os.environ["RANK"])
folder = os.environ["BENCH_DIR"]
dist.init_process_group("gloo")
times = {}


def took(name, f):
    dist.barrier()
    began = time.perf_counter()
    result = f()
    times.setdefault(name, []).append(time.perf_counter() - began)
    return result


state = State(int(sys.argv[1]))
size, sharded = state.size, {f"{rank}.{name}": t for name, t in state.named().items()}
ckpt = Checkpointer(os.path.join(folder, "checkpoints"), shards="world", size_hint=size + (1 << 20))
source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
places = [(torch.ones_like(t), t) for t in state.named().values()]
time.sleep(2)  # what a script does before its first save
step = 0


def memcpy(pairs):
    """Copies tensors by the C library's memmove, with as many threads as a save has."""
    def some(first):
        for to, t in pairs[first::threads]:
            _copy.memmove(to.data_ptr(), t.data_ptr(), t.nbytes)
    threads = 1 + _copy.helpers()
    helping = [threading.Thread(target=some, args=(i,)) for i in range(1, threads)]
    for thread in helping:
        thread.start()
    some(0)
    for thread in helping:
        thread.join()


def save(kind):
    global step
    step += 1
    state.whole["step"] = step
    assert ckpt.save_checkpoint(step, state.whole, storage_type=kind)


def async_save():
    return dcp.async_save(sharded, checkpoint_id=os.path.join(folder, "dcp"))


def finish(future):
    future.result()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(os.path.join(folder, "dcp"))


def agent():
    """The memory of the launcher, in MB, less what it shares with the workers: checkpoints."""
    with open(f"/proc/{os.getppid()}/smaps_rollup") as f:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in f if "kB" in line}
    times.setdefault("agent", []).append((kib["Pss"] - kib["Pss_Shmem"]) * 1024 / 1e6)


def tell():
    with open(os.path.join(folder, f"{rank}.json"), "w") as f:
        json.dump(times, f)
    dist.barrier()


took("first", lambda: save(StorageType.MEMORY))
if sys.argv[2:] == ["first"]:
    tell()
    sys.exit()
for _ in range(9):
    time.sleep(0.5)  # training
    took("memcpy", lambda: memcpy(places))
    took("block", lambda: memcpy([(target, source)]))
    took("memory", lambda: save(StorageType.MEMORY))
finish(async_save())  # the first one meets memory that nobody has touched
for _ in range(5):
    finish(took("dcp", async_save))
agent()
for _ in range(5):
    save(StorageType.DISK)
    took("flush", ckpt.wait_latest_checkpoint)

    def raw():
        with open(os.path.join(folder, f"raw{rank}"), "wb", buffering=0) as f:
            view = memoryview(source.numpy())
            for at in range(0, size, 8 << 20):
                f.write(view[at:at + (8 << 20)])
            os.fsync(f.fileno())
    took("raw", raw)

    def plain():
        with open(os.path.join(folder, f"plain{rank}"), "wb") as f:
            torch.save(state.whole, f)
            f.flush()
            os.fsync(f.fileno())
    took("torch.save", plain)
agent()
weights = torch.rand(384, 384)


def train(done):
    """Trains until done, and returns how often, and for how many seconds."""
    count, began = 0, time.perf_counter()
    while not done():
        weights @ weights
        count += 1
    return count, time.perf_counter() - began


def lost(name, done):
    """The training that is lost until done, in seconds."""
    count, seconds = train(done)
    times.setdefault(name, []).append(max(0, seconds - count * pace))


for _ in range(5):
    dist.barrier()
    until = time.perf_counter() + 0.5
    count, seconds = train(lambda: time.perf_counter() > until)
    pace = seconds / count
    save(StorageType.DISK)
    dist.barrier()
    waiting = threading.Thread(target=ckpt.wait_latest_checkpoint)
    waiting.start()
    lost("slow", lambda: not waiting.is_alive())
    dist.barrier()
    future = async_save()
    dist.barrier()
    lost("dcp_slow", future.done)
    finish(future)
tell()

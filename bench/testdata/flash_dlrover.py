"""Saves a state through DLRover's API, be that its own package or muster's: the same script for both. Rank 0 writes its times,
in seconds, to BENCH_DIR/0.json. usage: flash_dlrover.py MIB"""
import json
import os
import sys
import time

import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from flash_state import State

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["BENCH_DIR"]
directory = os.path.join(folder, "checkpoints")
tracker = os.path.join(directory, "dlrover_latest.txt")
state = State(int(sys.argv[1]))
ckpt = DdpCheckpointer(directory)
times, step = {}, 0


def save(name, kind):
    global step
    step += 1
    state.whole["step"] = step
    dist.barrier()
    began = time.perf_counter()
    # Both packages take a path for every step; DLRover's writes nothing without one.
    ckpt.save_checkpoint(step, state.whole, os.path.join(directory, f"{step}.pt"), storage_type=kind)
    times.setdefault(name, []).append(time.perf_counter() - began)
    return began


def committed():
    try:
        with open(tracker) as f:
            return f.read() == str(step)
    except FileNotFoundError:
        return False


time.sleep(1)
save("first", StorageType.MEMORY)
for _ in range(6):
    time.sleep(0.5)  # training
    save("memory", StorageType.MEMORY)
for _ in range(4):
    time.sleep(0.5)
    began = save("disk", StorageType.DISK)
    if rank == 0:
        while not committed():
            time.sleep(0.005)
        times.setdefault("committed", []).append(time.perf_counter() - began)
        with open(os.path.join(directory, f"{step}.pt"), "rb") as f:
            os.fsync(f.fileno())
        times.setdefault("synced", []).append(time.perf_counter() - began)
if rank == 0:
    with open(os.path.join(folder, "0.json"), "w") as f:
        json.dump(times, f)
dist.barrier()

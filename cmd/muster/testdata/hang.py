"""Trains nothing, and hangs in the way that the first argument names. A file tells that the ranks have met."""
import fcntl
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

WAY, READY = sys.argv[1], sys.argv[2]
ODD = 1  # the rank that does something else
rank = int(os.environ["RANK"])


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 4:
            if WAY == "loader-stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                time.sleep(3600)
        return i


def never_comes():
    time.sleep(3600)


def loops():
    n = 0
    while True:
        n += 1


def odd():
    if WAY == "sleep":
        never_comes()
    elif WAY == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif WAY == "loop":
        loops()
    elif WAY.startswith("loader"):
        for _ in torch.utils.data.DataLoader(Data(), num_workers=1, prefetch_factor=1):
            pass
    elif WAY == "file-lock":
        with open(READY + ".lock", "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
    elif WAY == "deadlock":
        first, second = threading.Lock(), threading.Lock()
        first.acquire()

        def other():
            second.acquire()
            first.acquire()

        threading.Thread(target=other, daemon=True).start()
        time.sleep(0.5)
        second.acquire()
    elif WAY == "gil":
        import ctypes
        threading.Thread(target=loops, daemon=True).start()
        qsort = ctypes.PyDLL(None).qsort  # keeps Python's lock
        compare = ctypes.cast(ctypes.CDLL(None).strcmp, ctypes.c_void_p)
        n = 1 << 24
        memory = ctypes.create_string_buffer(n * 8)
        while True:
            qsort(memory, n, 8, compare)
    elif WAY == "other-collective":
        dist.broadcast(torch.zeros(1), 0)


dist.init_process_group("gloo")
tensor = torch.zeros(1)
dist.all_reduce(tensor)
if WAY == "file-lock" and rank == 0:  # and waits for the others with it
    held = open(READY + ".lock", "a")
    fcntl.flock(held, fcntl.LOCK_EX)
dist.barrier()
if WAY == "healthy":
    import random
    for step in range(60):
        tensor += 1
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
        time.sleep(0.05)
        if step == 1 and rank == 0:
            open(READY, "w").close()
    print("rank", rank, "result", float(tensor))
else:
    if rank == 0:
        open(READY, "w").close()
    if rank == ODD and not os.path.exists(READY + ".again"):
        odd()
    dist.all_reduce(tensor)
dist.destroy_process_group()

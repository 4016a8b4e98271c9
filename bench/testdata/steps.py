"""Gloo workers that tell their steps: as fast as it goes until there is a file "enough", or 30 and then a hang.

Each says when it begins to wait, in the form of stamp.sh: a job that hangs when it has told its last step, others after
their first steps. Rank 0 writes the median of its later steps in ms.
"""
import os
import signal
import statistics
import sys
import time

import muster
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, directory = dist.get_rank(), os.environ["BENCH_DIR"]
enough, value, times = torch.zeros(1), torch.ones(1 << 12), []


def stamp():
    now = time.time_ns()
    stamps = os.open(os.path.join(directory, "stamps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(stamps, f"{now // 10**9}.{now % 10**9:09d} {rank} 0 {os.getpid()}\n".encode())
    os.close(stamps)


step = 0
while not enough.item():
    began = time.perf_counter()
    time.sleep(0.02)
    dist.all_reduce(value)
    value /= dist.get_world_size()
    enough[0] = os.path.exists(os.path.join(directory, "enough"))
    dist.all_reduce(enough, dist.ReduceOp.MIN)
    times.append(time.perf_counter() - began)
    step += 1
    muster.progress.step(step)
    if step == 30:
        stamp()
        if sys.argv[1] == "hang":
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(value)
if rank == 0:
    with open(os.path.join(directory, "step"), "w") as f:
        f.write("%.4f" % (1000 * statistics.median(times[30:])))
dist.barrier()
dist.destroy_process_group()

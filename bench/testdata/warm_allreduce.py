"""A gloo worker that says when its first all-reduce has ended, in the form of stamp.sh.

In attempts below BENCH_HOLD it then goes on reducing, as training does, until it is killed; else it ends with status 0.
"""
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(8)
dist.all_reduce(value)
now = time.time_ns()

rank, world_size = dist.get_rank(), dist.get_world_size()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert value.eq(world_size).all(), (rank, attempt, value)
stamps = os.open(os.path.join(os.environ["BENCH_DIR"], "stamps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(stamps, f"{now // 10**9}.{now % 10**9:09d} {rank} {attempt} {os.getpid()}\n".encode())
os.close(stamps)

while attempt < int(os.environ["BENCH_HOLD"]):
    dist.all_reduce(torch.ones(8))
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()

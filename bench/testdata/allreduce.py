"""A worker of a gloo job in which one worker dies once: rank 3 kills itself in the middle of the first attempt.

Every attempt that is not disturbed ends with status 0 and the right sums.
"""
import datetime
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
rank, world_size = dist.get_rank(), dist.get_world_size()
died = os.path.join(os.environ["BENCH_DIR"], "died")
for step in range(20):
    if step == 10 and rank == 3 and not os.path.exists(died):
        open(died, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    value = torch.tensor([float(rank + step)])
    dist.all_reduce(value)
    want = world_size * step + world_size * (world_size - 1) / 2
    assert value.item() == want, (rank, step, value.item(), want)
dist.barrier()
dist.destroy_process_group()

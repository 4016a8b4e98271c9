"""Adds up rank+1 of all workers again and again. The worker of VICTIM, a node rank, kills itself once."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

victim = f"{os.environ['OUT']}/killed"
dist.init_process_group("gloo")
for step in range(20):
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    if step == 10 and os.environ["GROUP_RANK"] == os.environ["VICTIM"] and not os.path.exists(victim):
        open(victim, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
print(f"rank {dist.get_rank()} sum {total.item()}", flush=True)
dist.barrier()
sys.stdout.flush()
os._exit(0)

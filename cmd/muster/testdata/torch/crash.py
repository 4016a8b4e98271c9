"""All-reduces over gloo. In the first attempt the rank named by VICTIM kills itself in the middle of it."""
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(20):
    if first and step == 5 and rank == int(os.environ.get("VICTIM", "-1")):
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(4) * rank
    dist.all_reduce(total)
    assert total[0].item() == world * (world - 1) / 2, total
dist.barrier()
os.write(1, b"finished %d\n" % rank)
dist.destroy_process_group()

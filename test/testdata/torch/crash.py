"""All-reduces over gloo. In each attempt that has a victim in VICTIMS, ranks separated by commas, that one kills itself in the middle of it."""
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
attempt, victims = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["VICTIMS"].split(",")
for step in range(20):
    if step == 5 and attempt < len(victims) and rank == int(victims[attempt]):
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(4) * rank
    dist.all_reduce(total)
    assert total[0].item() == world * (world - 1) / 2, total
dist.barrier()
os.write(1, b"finished %d\n" % rank)
dist.destroy_process_group()

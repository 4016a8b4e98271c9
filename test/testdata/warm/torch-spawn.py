# soak: make test has TestWarmTraining, TestWarmErrorFile
# python: torch
# python: debian
# workers: 1
# status: 1
"""Spawned and recorded."""
import sys
import os
import torch
import torch.multiprocessing as mp
from torch.distributed.elastic.multiprocessing.errors import record

def child(index, queue):
    queue.put((index, sys.argv, __name__, torch.get_num_threads(), os.environ["RANK"], os.environ.get("PYTHONPATH"), sys.path))

@record
def main():
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(child, (queue,), nprocs=1)
    print(queue.get())
    sys.stdout.flush()
    shared = torch.zeros(2).share_memory_()
    p = mp.get_context("fork").Process(target=shared.add_, args=(1,))
    p.start()
    p.join()
    print(shared, p.exitcode)
    raise ValueError("of rank " + os.environ["RANK"])

if __name__ == "__main__":
    main()

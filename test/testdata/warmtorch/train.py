"""Everything that two CPU workers do with PyTorch; what it prints must not depend on how the workers were started."""
import os
import random
import sys

import numpy.random

try:
    import torch
except ImportError:
    torch = None
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "torch"))
import toy
import uncompiled

SOAK = os.environ.get("TESTS_SOAK") == "1"
SPAWNED = 2 if SOAK else 1  # each imports PyTorch again

def show(text):
    os.write(1, b"rank %s: %s\n" % (os.environ["RANK"].encode(), text.encode()))


def another(index, rank, results):
    torch.manual_seed(index)
    results.put((index, rank, os.environ["RANK"], torch.randn(8, 8).sum().item()))


def generators():
    """No generator may be in the same state in both ranks: each process seeds its own from the system."""
    drawn = [None, None]
    dist.all_gather_object(drawn, (random.random(), numpy.random.rand(), torch.initial_seed(), torch.rand(1).item()))
    for name, one, other in zip(("random", "numpy", "seed of torch", "torch"), *drawn):
        assert one != other, "%s draws the same in both ranks: %r" % (name, one)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert os.path.dirname(toy.__file__) == os.path.dirname(os.path.abspath(__file__)), toy.__file__
    show("torch %s, %d threads, %s" % (torch.__version__, torch.get_num_threads(), torch.get_default_dtype()))
    generators()

    show("DDP %r" % toy.steps(DistributedDataParallel(toy.model()), rank))
    show("FSDP %r" % toy.steps(FullyShardedDataParallel(toy.model(), device_id=torch.device("cpu")), rank))
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    model = toy.model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    show("FSDP2 %r" % toy.steps(fully_shard(model, mesh=mesh), rank))

    # A spawned process imports PyTorch again, so one rank loads data in such processes while the other spawns its own, and
    # only under make soak. The results are the same however the processes start, by START_METHOD.
    for number, context in [(2, "fork"), (SPAWNED, os.environ["START_METHOD"])][:2 - rank if SOAK else 1]:
        loader = DataLoader(toy.Samples(), batch_size=4, num_workers=number, multiprocessing_context=context)
        show("DataLoader %r" % [(x.sum().item(), makers.tolist()) for x, makers in loader])
    if rank == 1:
        results = mp.get_context("spawn").SimpleQueue()
        mp.start_processes(another, args=(rank, results), nprocs=SPAWNED, start_method=os.environ["START_METHOD"])
        show("processes %r" % sorted(results.get() for _ in range(SPAWNED)))
    dist.barrier()
    dist.destroy_process_group()
    show("finished")


if __name__ == "__main__":
    main()
    # PyTorch 2.15.0 keeps gloo's threads of a DistributedDataParallel model past destroy_process_group. At an ordinary exit they
    # meet the destructors of the library, now and then with "terminate called without an active exception" and SIGABRT.
    os._exit(0)

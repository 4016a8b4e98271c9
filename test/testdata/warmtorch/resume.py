"""Trains with checkpoints. In each of its first KILLS attempts one rank kills itself, and the next attempt trains on."""
import os
import random
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "torch"))
import uncompiled

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
file = os.environ["CHECKPOINT"]
seed = torch.initial_seed()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    losses = saved["losses"]
os.write(1, b"rank %d: attempt %d starts at step %d\n" % (rank, attempt, len(losses)))
os.write(1, b"drew %.15f\ndrew %d\n" % (random.random(), seed))
dist.barrier()  # both have read the checkpoint
for step in range(len(losses), 8):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(10 * step + rank))
    loss = torch.nn.functional.mse_loss(model(x).squeeze(1), x.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    losses.append(mean.item() / 2)
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, file + ".new")
        os.rename(file + ".new", file)
    dist.barrier()
    if step == 2 * attempt + 1 and attempt < int(os.environ["KILLS"]) and rank == attempt % 2:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
os.write(1, b"rank %d: losses %a\n" % (rank, losses))
# PyTorch 2.15.0 keeps gloo's threads of a DistributedDataParallel model past destroy_process_group. At an ordinary exit they
# meet the destructors of the library, now and then with "terminate called without an active exception" and SIGABRT.
os._exit(0)

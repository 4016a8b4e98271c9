"""Trains a small network on the handwritten digits that scikit-learn carries, on any number of workers.

    muster run -n 2 --max-restarts 3 -- python train.py --dir out

The launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; everything else here is ordinary PyTorch. Rank 0 writes
a checkpoint every few steps. A worker that is started again, after a crash of its own or of another, goes on from the
newest one: the batch of a step depends on the step alone, so the run ends as if nothing had happened. What is to go
wrong in a rehearsal is up to the spec of a fake accelerator (faults.py).
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import faults

TRAINED = 1437  # of 1797 images; the others measure the accuracy


def data():
    """The images scaled to 0..1 with their labels, in an order that is the same in every worker."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


def batch(step, rank, world_size, size=64):
    """The indices of one worker's share of one step. Shares of different ranks never overlap."""
    order = torch.randperm(TRAINED, generator=torch.Generator().manual_seed(step))
    return order[rank::world_size][:size]


def save(path, state):
    """Writes a checkpoint that is there completely or not at all, whenever the process dies."""
    with open(path + ".tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def resume(path, model, optimizer):
    """Loads the checkpoint at path, if there is one, and returns the number of steps that it has seen."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, help="where the checkpoint, the progress and the result are written")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()

    rehearsal = faults.Faults()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(os.path.join(args.dir, f"worker-{rank}.pid"), "w") as file:
        file.write(str(os.getpid()))

    torch.manual_seed(0)
    images, labels = data()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    checkpoint = os.path.join(args.dir, "checkpoint.pt")
    first = resume(checkpoint, model, optimizer)
    parallel = DistributedDataParallel(model)
    if rank == 0:
        print(f"attempt {attempt}: starting at step {first} with {world_size} workers", flush=True)

    # One line a step: time, attempt, step. It shows from outside how far we are, and how much a crash cost.
    with open(os.path.join(args.dir, "progress"), "a", buffering=1) as progress:
        for step in range(first + 1, args.steps + 1):
            mine = batch(step, rank, world_size)
            loss = nn.functional.cross_entropy(parallel(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of all workers
            optimizer.step()
            if rank == 0:
                progress.write(f"{time.time():.3f} {attempt} {step}\n")
                if step % 100 == 0:
                    print(f"step {step}: loss {loss.item():.3f}", flush=True)
                if step % args.save_every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    save(checkpoint, state)
            rehearsal.after(step)

    if rank == 0:
        with torch.no_grad():
            right = model(images[TRAINED:]).argmax(1) == labels[TRAINED:]
        with open(os.path.join(args.dir, "result"), "w") as file:
            file.write(f"{right.float().mean().item():.4f} {attempt}\n")
    dist.barrier()  # nobody leaves while another still needs the connection
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a tiny GPT on the CPU and keeps its state, until it is killed. Rank 0 writes how many steps are done to BENCH_DIR/steps.
usage: goodput.py flash|torch. flash: DLRover's API, a copy in memory after every 5th step and a file after every 100th;
torch: torch.save by rank 0 after every 20th step."""
import os
import sys
import time

import torch
import torch.distributed as dist

folder = os.environ["BENCH_DIR"]
rank = int(os.environ["RANK"])
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")


class GPT(torch.nn.Module):
    def __init__(self, vocabulary=1024, width=256, layers=4, length=64):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.places = torch.nn.Parameter(torch.zeros(length, width))
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.head = torch.nn.Linear(width, vocabulary)
        self.mask = torch.nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, ids):
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(x)


model = torch.nn.parallel.DistributedDataParallel(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
directory = os.path.join(folder, "checkpoints")
os.makedirs(directory, exist_ok=True)


class Plain:
    """What a script does by itself: a file, replaced as a whole."""

    path = os.path.join(directory, "plain.pt")

    def load_checkpoint(self):
        return torch.load(self.path) if os.path.exists(self.path) else {}

    def save(self, step, state):
        if step % 20 == 0 and rank == 0:
            torch.save(state, self.path + ".tmp")
            os.replace(self.path + ".tmp", self.path)


if sys.argv[1] == "torch":
    ckpt = Plain()
    save = ckpt.save
else:
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
    ckpt = DdpCheckpointer(directory)

    def save(step, state):
        if step % 5 == 0:
            kind = StorageType.DISK if step % 100 == 0 else StorageType.MEMORY
            ckpt.save_checkpoint(step, state, os.path.join(directory, f"{step}.pt"), storage_type=kind)

step = 0
state = ckpt.load_checkpoint()
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
del state
progress = os.open(os.path.join(folder, "steps"), os.O_WRONLY | os.O_CREAT)
told = False
while True:
    step += 1
    ids = torch.randint(0, 1024, (2, 65), generator=torch.Generator().manual_seed(step * 2 + rank))
    loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    if rank == 0:
        os.pwrite(progress, b"%12d\n" % step, 0)
    if not told:
        told = True
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        with open(os.path.join(folder, "stamps"), "a") as f:
            f.write(f"{seconds}.{nanoseconds:09d} {rank} {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)} {os.getpid()}\n")

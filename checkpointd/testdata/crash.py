"""Workers of the crash test. Reads lines: "start N" forks two ranks whose life is number N, "check PATH RANK STEP" loads a
file without muster, and prints what became of it."""
import os
import sys

import torch

from muster.checkpoint import Checkpointer, StorageType

torch.set_num_threads(1)
directory = sys.argv[1]


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def state(rank, step):
    base = torch.arange(20_000, dtype=torch.float32) * (step + 1) + rank
    tensors = {f"t{i}": torch.full((7 + i * 900,), step * 100 + rank * 10 + i, dtype=torch.float64) for i in range(20)}
    return {"base": base, "tied": base[5:100], "tensors": tensors, "step": step, "note": f"rank {rank}", "list": [1, (2.5, None)]}


def differs(got, rank, step):
    want = state(rank, step)
    if got["step"] != step or got["note"] != want["note"] or got["list"] != want["list"]:
        return "values"
    if not torch.equal(got["base"], want["base"]) or not torch.equal(got["tied"], want["tied"]):
        return "base"
    if got["tied"].untyped_storage().data_ptr() != got["base"].untyped_storage().data_ptr():
        return "ties"
    for name, tensor in want["tensors"].items():
        if not torch.equal(got["tensors"][name], tensor):
            return name
    return ""


def work(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    c = Checkpointer(directory, shards="world")
    got = c.load_checkpoint()
    if got:
        wrong = differs(got, rank, c.step)
        if wrong:
            say("wrong", rank, c.step, c.source, wrong)
            return
    say("loaded", rank, c.step, c.source)
    del got
    for step in range(c.step + 1, c.step + 200):
        kept = c.save_checkpoint(step, state(rank, step), storage_type=StorageType.DISK if step % 4 == 0 else StorageType.MEMORY)
        say("saved" if kept else "skipped", rank, step)


for line in sys.stdin:
    words = line.split()
    if words[0] == "start":
        pids = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    work(rank)
                except BaseException as e:
                    say("failed", rank, type(e).__name__, str(e).replace("\n", " "))
                os._exit(0)
            pids.append(pid)
        say("pids", *pids)
    elif words[0] == "reap":
        for pid in pids:
            os.waitpid(pid, 0)
        say("reaped")
    elif words[0] == "check":
        say("checked", differs(torch.load(words[1], weights_only=True), int(words[2]), int(words[3])) or "equal")

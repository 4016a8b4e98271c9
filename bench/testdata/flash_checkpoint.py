"""Saves and restores a state of GPT-2's shapes, through muster and in the ways that it is compared with, and writes the times
of each, in seconds, to BENCH_DIR/<rank>.json. usage: flash_checkpoint.py MIB WITH_DCP"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
from muster.checkpoint import Checkpointer, StorageType, _copy

MIB, DCP = int(sys.argv[1]), sys.argv[2] == "1"
rank = int(os.environ["RANK"])
folder = os.environ["BENCH_DIR"]
dist.init_process_group("gloo")
times = {}


def took(name, f):
    dist.barrier()
    began = time.perf_counter()
    result = f()
    times.setdefault(name, []).append(time.perf_counter() - began)
    return result


LAYERS = 12
WIDTH = int((MIB * 2**20 / 3 / 4 / (12 * LAYERS)) ** 0.5) // 8 * 8


def weights():
    shapes = {"c_attn": (WIDTH, 3 * WIDTH), "c_proj": (WIDTH, WIDTH), "c_fc": (WIDTH, 4 * WIDTH), "mlp_proj": (4 * WIDTH, WIDTH), "ln_1": (WIDTH,), "ln_2": (WIDTH,)}
    found = {}
    for i in range(LAYERS):
        for name, shape in shapes.items():
            found[f"h.{i}.{name}.weight"] = torch.rand(shape)
            found[f"h.{i}.{name}.bias"] = torch.rand(shape[-1])
    return found


model, first, second = weights(), weights(), weights()
optimizer = {
    "state": {i: {"step": torch.tensor(1.0), "exp_avg": a, "exp_avg_sq": b} for i, (a, b) in enumerate(zip(first.values(), second.values()))},
    "param_groups": [{"lr": 1e-3, "params": list(range(len(model)))}],
}
state = {"model": model, "optimizer": optimizer, "step": 0}
size = sum(t.nbytes for part in (model, first, second) for t in part.values())


def into_model(loaded):
    for name, t in model.items():
        t.copy_(loaded["model"][name])
    for i, moments in optimizer["state"].items():
        for name, t in moments.items():
            t.copy_(loaded["optimizer"]["state"][i][name])


checkpoints = os.path.join(folder, "checkpoints")
ckpt = Checkpointer(checkpoints, shards="world", size_hint=size + (1 << 20))
source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
time.sleep(2)  # what a script does before its first save
step = 0


def save(kind):
    global step
    step += 1
    state["step"] = step
    assert ckpt.save_checkpoint(step, state, storage_type=kind)


took("first", lambda: save(StorageType.MEMORY))
for _ in range(9):
    time.sleep(0.5)  # training
    took("memcpy", lambda: _copy.Copy([(target.data_ptr(), source.data_ptr(), size)], _copy.helpers()).finish())
    took("memory", lambda: save(StorageType.MEMORY))
for _ in range(5):
    def whole():
        save(StorageType.DISK)
        ckpt.wait_latest_checkpoint()
    took("disk", whole)

    def raw():
        with open(os.path.join(folder, f"raw{rank}"), "wb", buffering=0) as f:
            view = memoryview(source.numpy())
            for at in range(0, size, 8 << 20):
                f.write(view[at:at + (8 << 20)])
            os.fsync(f.fileno())
    took("raw", raw)

    def plain():
        with open(os.path.join(folder, f"plain{rank}"), "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
    took("torch.save", plain)
for _ in range(5):
    def restore():
        into_model(ckpt.load_checkpoint())
        assert ckpt.source == "memory"
    took("restore", restore)
    took("torch.load", lambda: into_model(torch.load(os.path.join(folder, f"plain{rank}"), weights_only=False)))
if DCP:
    import torch.distributed.checkpoint as dcp
    sharded = {f"{rank}.{name}": t for name, t in {**model, **{"a." + k: v for k, v in first.items()}, **{"b." + k: v for k, v in second.items()}}.items()}
    for i in range(4):
        out = os.path.join(folder, f"dcp{i}")
        future = took("dcp", lambda: dcp.async_save(sharded, checkpoint_id=out))
        future.result()
        dist.barrier()
        if rank == 0:
            shutil.rmtree(out)
times["size"] = [size]
with open(os.path.join(folder, f"{rank}.json"), "w") as f:
    json.dump(times, f)
dist.barrier()

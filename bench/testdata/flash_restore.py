"""Dies, again and again, and restores a state of GPT-2's shapes into the model: from muster's memory, and by torch.load from the
page cache, by turns. Writes the times, in seconds, to BENCH_DIR/<rank>.json. usage: flash_restore.py MIB TIMES"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from flash_state import State
from muster.checkpoint import Checkpointer, StorageType

rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder = os.environ["BENCH_DIR"]
told, plain = os.path.join(folder, f"{rank}.json"), os.path.join(folder, f"plain{rank}")
dist.init_process_group("gloo")
state = State(int(sys.argv[1]))
ckpt = Checkpointer(os.path.join(folder, "checkpoints"), shards="world")
if life == 0:
    ckpt.save_checkpoint(1, state.whole, storage_type=StorageType.DISK)
    torch.save(state.whole, plain)
    ckpt.wait_latest_checkpoint()
    with open(told, "w") as f:
        json.dump({"restore": [], "torch.load": []}, f)
else:
    name, load = [("torch.load", lambda: torch.load(plain, weights_only=False)), ("restore", ckpt.load_checkpoint)][life % 2]
    time.sleep(2)  # what has started with it comes to rest
    dist.barrier()
    began = time.perf_counter()
    loaded = load()
    state.restore(loaded)
    took = time.perf_counter() - began
    assert name != "restore" or ckpt.source == "memory", ckpt.source
    with open(told) as f:
        times = json.load(f)
    times[name].append(took)
    with open(told, "w") as f:
        json.dump(times, f)
dist.barrier()
sys.exit(life < 2 * int(sys.argv[2]))

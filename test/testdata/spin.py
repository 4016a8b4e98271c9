"""Two ranks: after some steps one sleeps, and the other keeps a processor busy in native code, as one that waits for its GPU does."""
import hashlib
import time

import torch
import torch.distributed as dist

torch.cuda.is_initialized = lambda: True  # as if they had GPUs
torch.cuda.device_count = lambda: 0
dist.init_process_group("gloo")
tensor = torch.ones(4)
for _ in range(60):
    dist.all_reduce(tensor)
    time.sleep(0.25)
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(tensor, async_op=True)
hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)

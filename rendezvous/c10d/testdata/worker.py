"""A worker of a test: meets the others, sums the ranks with them, and writes down what it saw.

It then waits for a file that says what to do: "end" ends it well, "fail.<rank>" ends it badly, once. Told by the
environment: DIR, and where there is a NO_TORCH it only writes down its environment.
"""

import json
import os
import sys
import time

env = os.environ
here, rank = env["DIR"], int(env["RANK"])
saw = {k: env.get(k, "") for k in ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")}
if "NO_TORCH" not in env:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    sum = torch.tensor([rank + 1.0])
    dist.all_reduce(sum)
    saw["sum"] = int(sum.item())
path = f"{here}/saw.{os.getpid()}"
with open(path + ".new", "w") as f:
    json.dump(saw, f)
os.rename(path + ".new", path)
while not os.path.exists(f"{here}/end"):
    try:
        os.unlink(f"{here}/fail.{rank}")
        os._exit(3)
    except FileNotFoundError:
        pass
    time.sleep(0.05)
# No process group is destroyed: whoever is late with its last message must not see its peers gone.
os._exit(0)

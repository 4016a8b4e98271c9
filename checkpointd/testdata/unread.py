"""Options of DLRover's checkpointers that mean nothing here, and rules that come late. Prints one line for each case; an exception ends it."""
import logging
import os
import sys

from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from muster.checkpoint import Checkpointer

root, said = sys.argv[1], []


class Heard(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("muster.checkpoint").addHandler(Heard())
directory = os.path.join(root, "options")
DdpCheckpointer(directory)._checkpointer._link.close()
assert said == [], said
first = DdpCheckpointer(directory, comm_backend="nccl", save_timeout=60, local_shard_num=3)
first._checkpointer._link.close()
assert len(said) == 1 and all(word in said[0] for word in ("comm_backend='nccl'", "save_timeout=60", "local_shard_num=3")), said
DdpCheckpointer(directory, 3, 1, "nccl", None, 60)._checkpointer._link.close()
assert len(said) == 1, said
print("options", flush=True)

late = Checkpointer(os.path.join(root, "late"))
late.also(replicas=2)
late.also(keep=2)
late.also(keep=2, replicas=1)
assert len(said) == 1, said
for step in range(1, 5):
    assert late.save_checkpoint(step, {"step": step})
    assert late.wait_latest_checkpoint(60) == step
kept = sorted(int(name) for name in os.listdir(late.directory) if name.isdigit())
assert kept == [3, 4], kept
late.also(keep=3)
late.also(keep=3)
assert len(said) == 2 and "no effect: what is to stay on disk" in said[1], said
print("late", flush=True)

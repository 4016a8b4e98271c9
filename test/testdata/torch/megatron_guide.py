"""Megatron with DLRover's flash checkpoint: the guide's example, whose save_checkpoint had an argument by position behind one by name.
Rank 1 kills itself at step 5 of the first attempt. The model is that of checkpointd/testdata."""
import os
import signal
import sys

import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.megatron_dist_ckpt import load_checkpoint, save_checkpoint, wait_latest_checkpoint
from dlrover.trainer.torch.flash_checkpoint.megatron import StorageType

import megatron_job


def main(directory):
    rank = int(os.environ["RANK"])
    megatron_job.start()
    job = megatron_job.Job(directory, tp=2)
    model, optimizer, opt_param_scheduler = job.all
    iteration, num_floating_point_operations_so_far = load_checkpoint(model, optimizer, opt_param_scheduler)
    if iteration:
        print("restored", iteration, num_floating_point_operations_so_far, flush=True)
    while iteration < 8:
        iteration += 1
        num_floating_point_operations_so_far += 100
        job.train()
        kind = StorageType.DISK if iteration % 4 == 0 else StorageType.MEMORY
        save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, storage_type=kind)
        dist.barrier()
        if iteration == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    assert wait_latest_checkpoint() == 8
    ended, again = job.state(), megatron_job.Job(directory, tp=2)  # by Megatron alone
    assert megatron_job.checkpointing.load_checkpoint(*again.all) == (8, 800) and megatron_job.same(ended, again.state())
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

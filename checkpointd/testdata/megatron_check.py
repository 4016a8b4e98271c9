"""Loads step 3 of what megatron_save.py left by Megatron alone: what muster wrote gives the state that Megatron's own copy gives, bit for
bit; with one rank, of those that can be restored by another number of ranks. Then, through muster, a job whose newest step on
disk is damaged, and one whose checkpoints memory has no room for."""
import os
import sys

import torch

import megatron_job
from megatron_job import CASES


def main():
    root, store, socket, cases = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    megatron_job.start(store)
    assert "dlrover" not in sys.modules and "muster" not in sys.modules
    for case in cases.split(","):
        tp, *words = CASES[case]
        if world == 1 and not case.startswith("dist"):
            continue
        if world == 1 and case == "dist distributed":
            words += ["--no-load-optim"]  # Megatron's default form of it is for one number of ranks
        states = []
        for directory in (root + "/" + case, root + "/stock/" + case):
            job = megatron_job.Job(directory, *words, tp=min(tp, world))
            torch.manual_seed(0)
            assert megatron_job.checkpointing.load_checkpoint(*job.all) == (3, 7e20)
            states.append(job.state())
        megatron_job.same(*states)
        if case == "dist":
            dist_state = states[0]
        if rank == 0:
            print("equal", case, flush=True)
    os.environ["MUSTER_SOCKET"] = socket
    from muster.checkpoint.megatron import TRACKER, MegatronCheckpointer, StorageType, load_checkpoint, save_checkpoint

    if world == 1:  # memory has no room
        directory = root + "/full"
        job = megatron_job.Job(directory)
        job.train()
        assert save_checkpoint(1, *job.all, storage_type=StorageType.MEMORY) is False and not os.path.exists(directory + "/iter_0000001")
        assert save_checkpoint(2, *job.all, 5, storage_type=StorageType.DISK)
        kept, job = job.state(), megatron_job.Job(directory)
        assert load_checkpoint(*job.all) == (2, 5) and MegatronCheckpointer.singleton_instance().source != "memory"
        megatron_job.same(kept, job.state())
        print("equal full", flush=True)
    else:  # the newest step is damaged
        directory = root + "/dist"
        if rank == 0:
            with open(os.path.join(directory, TRACKER), "w") as f:
                f.write("4")
        torch.distributed.barrier()
        job = megatron_job.Job(directory, tp=2)
        torch.manual_seed(0)
        assert load_checkpoint(*job.all) == (3, 7e20) and MegatronCheckpointer.singleton_instance().source == "disk"
        megatron_job.same(dist_state, job.state())
        if rank == 0:
            print("equal passed over", flush=True)


if __name__ == "__main__":  # Megatron's own writer starts a process that imports this file
    main()

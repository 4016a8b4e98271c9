"""Two ranks keep a Megatron model in memory and on disk, in its formats torch and torch_dist, through DLRover's calls. Prints one
line for each case; an exception ends it. A copy that Megatron alone has written lies beside each directory."""
import copy
import os
import sys

import torch
import torch.distributed as dist

import megatron_job
from megatron_job import CASES

rank = int(os.environ["RANK"])


def job(save, case, *more, train=0):
    tp, *words = CASES[case]
    made = megatron_job.Job(save, *words, *more, tp=tp)
    for _ in range(train):
        made.train()
    return made


def main():
    megatron_job.start(store)
    # As the guide prints it, but for the order of arguments of save_checkpoint: a positional one followed one with a name.
    from dlrover.trainer.torch.flash_checkpoint.megatron_dist_ckpt import load_checkpoint, save_checkpoint, wait_latest_checkpoint
    from dlrover.trainer.torch.flash_checkpoint.megatron import StorageType
    from dlrover.trainer.torch.flash_checkpoint import megatron

    for case in cases:
        ours = os.path.join(root, case)
        fresh = job(ours, case)
        assert load_checkpoint(*fresh.all) == (0, 0), "a checkpoint out of nothing"
        trained = job(ours, case, train=2)
        save_checkpoint(2, *trained.all, storage_type=StorageType.MEMORY)
        kept = trained.state()
        trained.train()
        dist.barrier()
        assert not [name for name in os.listdir(ours) if not name.startswith(".")], os.listdir(ours)

        got = job(ours, case)
        assert load_checkpoint(*got.all)[0] == 2 and megatron_job.same(kept, got.state())
        assert megatron.MegatronCheckpointer.singleton_instance(ours).source == "memory"
        assert megatron_job.checkpointing.get_args().load == ours and got.args.save == ours
        done(case, "memory")

        # A step with another value of everything, as muster and as Megatron write it.
        save_checkpoint(3, *trained.all, 7e20, storage_type=StorageType.DISK)
        kept, number = trained.state(), torch.get_rng_state()
        assert wait_latest_checkpoint(60) == 3
        args = megatron_job.checkpointing.get_args()
        args.save = root + "/stock/" + case
        os.makedirs(args.save, exist_ok=True)
        torch.set_rng_state(number)
        megatron_job.checkpointing.save_checkpoint(3, *trained.all, 7e20)
        got = job(ours, case)
        assert megatron_job.checkpointing.load_checkpoint(*got.all) == (3, 7e20) and megatron_job.same(kept, got.state())
        done(case, "disk")

        if case.endswith(" distributed"):
            parts(trained)
        flags(ours, case, kept, load_checkpoint)
        fresh = job(ours + " nowhere", case, "--exit-on-missing-checkpoint")
        try:
            load_checkpoint(*fresh.all)
            raise AssertionError("went on without a checkpoint")
        except SystemExit:
            done(case, "flags")

        # What the flags leave out is not saved. Then a job whose newest step on disk is damaged.
        lean = job(ours, case, "--no-save-optim", "--no-save-rng", train=4)
        if case != "dist distributed":  # Megatron's plan for that optimizer wants its state
            megatron.save_checkpoint(4, *lean.all, storage_type=StorageType.MEMORY)
            lean = job(ours, case, "--no-load-optim", "--no-load-rng")
            assert megatron.load_checkpoint(*lean.all)[0] == 4
        if case.startswith("classic"):
            assert optimizer_saved(ours) is False
        done(case, "lean")
    dist.barrier()
    dist.destroy_process_group()


def done(case, what):
    if rank == 0:
        print(f"done {case} {what}", flush=True)


def optimizer_saved(directory):
    from muster.checkpoint.megatron import MegatronCheckpointer

    checkpointer = MegatronCheckpointer.singleton_instance(directory)
    tensor_rank = rank if directory.endswith("classic") else 0
    found = checkpointer.load_files()
    state = found.load(f"mp_rank_{tensor_rank:02d}/model_optim_rng.pt")
    assert found.step == 4 and state["args"].save == directory and state["args"].async_save is False
    return any(name in state for name in ("optimizer", "opt_param_scheduler", "rng_state"))


def parts(trained):
    """Takes this rank's part of a distributed optimizer out, and puts it back."""
    from dlrover.trainer.torch.flash_checkpoint import megatron_dist_ckpt as names

    kept = trained.state()
    states = copy.deepcopy(names.get_chained_optimizer_parameter_state(trained.optimizer))
    trained.train()
    assert not torch.equal(kept["optimizer.0.0.0.exp_avg"], trained.state()["optimizer.0.0.0.exp_avg"])
    names.load_chained_optimizer_parameter_state(trained.optimizer, states)
    megatron_job.same(kept, trained.state(), but=("model", "scheduler", "rng", "random"))
    assert names.get_dist_optimizer_checkpoint_name("/c", 3) == f"/c/iter_0000003/rank_{rank:05d}/distrib_optim.pt"


def flags(directory, case, kept, load_checkpoint):
    """Restores a part of step 3, from memory."""
    got = job(directory, case, "--no-load-optim", "--no-load-rng", train=1)
    before = got.state()
    assert load_checkpoint(*got.all) == (3, 7e20)
    after = got.state()
    megatron_job.same(kept, after, but=("optimizer", "scheduler", "rng", "random"))
    assert torch.equal(after["rng"], before["rng"]) and after["scheduler"] == before["scheduler"]
    assert not all(torch.equal(kept[name], after[name]) for name in kept if name.endswith("exp_avg"))
    got = job(directory, case, "--finetune", train=1)
    assert load_checkpoint(*got.all)[0] == 0
    megatron_job.same(kept, got.state(), but=("optimizer", "scheduler", "rng", "random"))


if __name__ == "__main__":  # Megatron's own writer starts a process that imports this file
    root, store, cases = sys.argv[1:]
    cases = cases.split(",")
    if rank == 0:
        for name in cases:
            os.makedirs(os.path.join(root, name), exist_ok=True)
    main()

"""A rank of two that keeps DeepSpeed engines: engines.py DIRECTORY STORE. Prints a line for each stage of ZeRO; an exception
ends it."""
import os
import sys

import torch
import torch.distributed as dist
import deepspeed
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

from dlrover.python.common.storage import KeepLatestStepStrategy
from dlrover.trainer.torch.flash_checkpoint.deepspeed import AsyncCheckpointAgent, DeepSpeedCheckpointer, StorageType

torch.set_num_threads(1)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
deepspeed.init_distributed(dist_backend="gloo")


def make(stage, seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8))
    config = {"train_batch_size": 8, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True, "steps_per_print": 10**9}
    if stage:
        config["bf16"] = {"enabled": True}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, lr_scheduler=scheduler, config=config)
    return engine


def train(engine, steps):
    """Returns the losses, which depend on everything that a checkpoint has."""
    losses = []
    for _ in range(steps):
        torch.manual_seed(engine.global_steps * 2 + rank)
        loss = engine(torch.randn(4, 64).to(next(engine.module.parameters()).dtype)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def same(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), (where, list(a), list(b))
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    elif type(a).__module__.startswith("deepspeed"):
        same(vars(a), vars(b), where)
    else:
        assert a == b, (where, a, b)


def files(directory):
    return sorted(os.path.relpath(os.path.join(d, f), directory) for d, _, names in os.walk(directory) for f in names if f != "muster_manifest.json")


def fresh(stage):
    """A checkpointer of a worker that was started anew: with an engine that knows nothing."""
    ckpt.engine = make(stage, 99)
    return ckpt


for stage in (0, 2, 3):
    root = os.path.join(sys.argv[1], f"zero{stage}")
    engine = make(stage, 1)
    ckpt = DeepSpeedCheckpointer(engine, root, deletion_strategy=KeepLatestStepStrategy(3, root))
    assert ckpt.load_checkpoint(root) == (None, None) and ckpt.source == "none"
    for _ in range(3):
        train(engine, 1)
        assert ckpt.save_checkpoint(root, client_state={"epoch": engine.global_steps}, storage_type=StorageType.MEMORY)
    ckpt._checkpointer._link._settle()
    dist.barrier()
    assert not any(name.startswith("global_step") or name == "latest" for name in os.listdir(root)), os.listdir(root)
    want = train(engine, 2)

    other = make(stage, 99)
    ckpt.engine = other
    path, state = ckpt.load_checkpoint(root)
    assert (ckpt.step, ckpt.source, state["epoch"], other.global_steps) == (3, "memory", 3, 3), (ckpt.step, ckpt.source, state)
    assert path.startswith(os.path.join(root, "global_step3") + os.sep), path
    assert not len(ckpt._checkpointer._views._views), "muster's memory is still looked at"
    assert train(other, 2) == want
    if stage == 3:  # its model alone
        ckpt.engine = make(stage, 99)
        assert ckpt.load_checkpoint(root, load_optimizer_states=False)[1]["epoch"] == 3
        ckpt.engine = other

    # On disk is what DeepSpeed writes itself.
    plain = os.path.join(sys.argv[1], f"plain{stage}")
    assert ckpt.save_checkpoint(root, 7, {"epoch": 5}, storage_type=StorageType.DISK)
    other.save_checkpoint(plain, 7, {"epoch": 5})
    assert ckpt.wait_latest_checkpoint(60) == 7
    dist.barrier()
    assert files(os.path.join(root, "7")) == files(os.path.join(plain, "7")) and len(files(os.path.join(plain, "7"))) == {0: 1, 2: 3, 3: 4}[stage]
    assert open(os.path.join(root, "latest")).read() == open(os.path.join(plain, "latest")).read() == "7"
    for name in files(os.path.join(plain, "7")):
        same(*(torch.load(os.path.join(d, "7", name), weights_only=False) for d in (root, plain)), name)
    if stage:
        same(get_fp32_state_dict_from_zero_checkpoint(root), get_fp32_state_dict_from_zero_checkpoint(plain))
    want = train(other, 2)
    alone = make(stage, 99)
    assert alone.load_checkpoint(root)[1]["epoch"] == 5 and train(alone, 2) == want

    # Tags of any name, and a step that is not the newest.
    assert ckpt.save_checkpoint(root, "best", storage_type=StorageType.DISK) and ckpt.wait_latest_checkpoint(60) == 7
    ckpt.engine = make(stage, 99)
    assert ckpt.load_checkpoint(root, 7)[1]["epoch"] == 5 and ckpt.source == "disk" and train(ckpt.engine, 2) == want
    for wrong in ({"save_dir": root + "-other"}, {"tag": "a/b"}):
        try:
            ckpt.save_checkpoint(**wrong)
        except ValueError as e:
            assert "cannot save to" in str(e)
        else:
            raise AssertionError(f"saved with {wrong}")
    if rank == 0:
        print(f"\nzero {stage}", flush=True)


def full(step, *args, **kwargs):
    assert ckpt._checkpointer._begin(step, 1 << 49, True) == -1
    raise MemoryError("no room")


# One rank finds no memory: nothing is kept there, and DeepSpeed writes what is to be on disk.
keeps = ckpt._checkpointer.save_files
if rank == 1:
    ckpt._checkpointer.save_files = full
step = ckpt.engine.global_steps
assert ckpt.save_checkpoint(storage_type=StorageType.MEMORY) is (rank == 0)
assert ckpt.save_checkpoint(client_state={"epoch": 10}, storage_type=StorageType.DISK)
want = train(ckpt.engine, 2)
ckpt._checkpointer.save_files = keeps
ckpt.engine = make(stage, 99)
dist.barrier()
assert ckpt.load_checkpoint()[1]["epoch"] == 10 and (ckpt.source, ckpt.step) == ("disk", step) and train(ckpt.engine, 2) == want, (ckpt.source, ckpt.step)

agent = AsyncCheckpointAgent(None)
assert agent.load(os.path.join(root, "7", files(os.path.join(root, "7"))[0]), map_location="cpu")

# Without muster.
del os.environ["MUSTER_SOCKET"]
ckpt = DeepSpeedCheckpointer(engine, os.path.join(sys.argv[1], "alone"))
assert ckpt.save_checkpoint(ckpt.directory, storage_type=StorageType.MEMORY) is False
assert ckpt.save_checkpoint(ckpt.directory, client_state={"epoch": 8})
dist.barrier()
ckpt.engine = make(stage, 99)
assert ckpt.load_checkpoint(ckpt.directory)[1]["epoch"] == 8 and ckpt.wait_latest_checkpoint() == engine.global_steps
if rank == 0:
    print("\nwithout muster", flush=True)
dist.barrier()

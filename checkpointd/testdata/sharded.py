"""A rank of two that keeps sharded states: sharded.py DIRECTORY STORE. It leaves steps in directories below DIRECTORY, and beside
each what a process without muster has to find there (sharded_check.py). Prints a line for each case; an exception ends it."""
import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from dlrover.python.common.storage import KeepLatestStepStrategy
from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpCheckpointer, FsdpFullCheckpointer, FsdpShardCheckpointer
from dlrover.trainer.torch.flash_checkpoint.fsdp_engine import FileReader, FsdpCheckpointEngine, SlicedBufferedReader
from muster.checkpoint import ShardedCheckpointer, StorageType, _dcp, safetensors_file

torch.set_num_threads(1)
torch.manual_seed(7)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
root = sys.argv[1]


def say(*words):
    if rank == 0:
        print(*words, flush=True)


def settle(checkpointer):
    """Waits until muster has what both ranks have saved: it answers the last message of a save later."""
    checkpointer._link._settle()
    dist.barrier()


def whole(value):
    """A state without sharding."""
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(v) for key, v in value.items()}
    return [whole(v) for v in value] if isinstance(value, (list, tuple)) else value


def leave(name, state):
    """Leaves what is to be found in a directory."""
    state = whole(state)
    if rank == 0:
        torch.save(state, os.path.join(root, name + ".want"))


def same(a, b, where="state"):
    assert type(a) is type(b) or isinstance(a, (list, tuple)), (where, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert all(x.view(-1).view(torch.uint8).tolist() == y.view(-1).view(torch.uint8).tolist() for x, y in [[t.resolve_conj().contiguous() for t in (a, b)]]), where
    elif isinstance(a, dict):
        assert list(a) == list(b), (where, list(a), list(b))
        [same(a[key], b[key], f"{where}.{key}") for key in a]
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        [same(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b))]
    else:
        assert a == b, (where, a, b)


def blank(value):
    """A state of the same form, with other values."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(v) for key, v in value.items()}
    return [blank(v) for v in value] if isinstance(value, (list, tuple)) else None


def net():
    return torch.nn.Sequential(torch.nn.Linear(37, 51), torch.nn.BatchNorm1d(51), torch.nn.Linear(51, 5, dtype=torch.float32))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.randn(8, 37)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# What any state may have in it.
model = net()
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train(model, optimizer)
flat = torch.randn(1 << 16)
rows = distribute_tensor(torch.randn(64, 8).bfloat16(), mesh, [Shard(0)])
state = {
    "rows": rows, "columns": distribute_tensor(torch.randn(6, 7), mesh, [Shard(1)]), "same": distribute_tensor(torch.randn(3), mesh, [Replicate()]),
    "slice": flat[100:200], "turned": torch.randn(4, 6).t(), "spread": flat[::3], "none": torch.empty(0, 3), "one": torch.tensor(3, dtype=torch.int64),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(), "bits": torch.tensor([True, False]),
    "text": "some", "history": [1], "nested": {"list": [1, torch.ones(2), {"deep": torch.arange(3)}], "pair": (1, 2.5), "numbered": {3: torch.ones(2)}},
}
state["model"], state["optim"] = get_state_dict(model, optimizer)
directory = os.path.join(root, "any")
checkpointer = ShardedCheckpointer(directory)
assert not checkpointer.load_checkpoint(blank(state)) and checkpointer.source == "none"
assert checkpointer.save_checkpoint(1, state, storage_type=StorageType.MEMORY)
plans = []
torch_planned = _dcp.Planner._planned
_dcp.Planner._planned = lambda self, planner: plans.append(self) or torch_planned(self, planner)
slot = max(s.size for s in checkpointer._slots.values())
assert slot < 1 << 18, slot  # of flat only what is saved
for step, text in ((2, "other"), (3, "a much longer one " * 200), (4, "a much longer 1ne " * 200)):
    with torch.no_grad():
        rows += step
        flat += step
    state["text"] = state["history"][0] = text
    state["history"] += [step]
    assert checkpointer.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
    settle(checkpointer)
    got = blank(state)
    assert checkpointer.load_checkpoint(got) and (checkpointer.step, checkpointer.source) == (step, "memory"), (checkpointer.step, checkpointer.source)
    same(whole(got), whole(state))
assert not plans
state["more"] = torch.full((4,), rank)  # of what all ranks have one counts
assert checkpointer.save_checkpoint(5, state, "newest-5", storage_type=StorageType.DISK) and len(plans) == 1
settle(checkpointer)
got = blank(state)
got["rows"] = torch.zeros(64, 8).bfloat16()  # divided otherwise: each rank reads the other one's memory, too
got["columns"] = distribute_tensor(torch.zeros(6, 7), mesh, [Shard(0)])
assert checkpointer.load_checkpoint(got) and checkpointer.source == "memory"
state["more"] = got["more"]
same(whole(got), whole(state))
assert checkpointer.wait_latest_checkpoint(60) == 5
leave("any/newest-5", state)
try:
    checkpointer.save_checkpoint(6, {"sparse": torch.eye(3).to_sparse()} if rank else {})
except dcp.api.CheckpointException as e:
    assert "layout torch.sparse_coo" in str(e), e
else:
    raise AssertionError("saved a sparse tensor")
for wrong in (os.path.join(root, "elsewhere", "5"), os.path.join(directory, "deep", "er")):
    try:
        checkpointer.save_checkpoint(6, state, wrong)
    except ValueError as e:
        assert "right in" in str(e)
    else:
        raise AssertionError("saved to " + wrong)
say("any state")

with torch.no_grad():
    rows += 1
state["text"] = "the last"
assert checkpointer.save_checkpoint(6, state, storage_type=StorageType.MEMORY)
leave("any/6", state)

# FSDP 1, by the calls of DLRover's older releases: the guide's example. With use_orig_params torch 2.15 gathers wrong full states of
# optimizers on CPUs.
model = FSDP(net(), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint_dir = os.path.join(root, "fsdp")
checkpointer = FsdpCheckpointer(checkpoint_dir)
assert checkpointer.get_storage_reader() is None
for step in (1, 2):
    train(model, optimizer)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer), "step": step}
        path = os.path.join(checkpoint_dir, str(step))
        checkpointer.save_checkpoint(step, state_dict, path, storage_type=StorageType.MEMORY if step == 1 else StorageType.DISK)


def full(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return {"model": copy.deepcopy(model.state_dict()), "optim": copy.deepcopy(FSDP.optim_state_dict(model, optimizer))}


want = full(model, optimizer)
settle(checkpointer._checkpointer)
train(model, optimizer, 2)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state_dict = {"model": model.state_dict(), "step": 0}
    reader = checkpointer.get_storage_reader()
    dcp.load_state_dict(state_dict=state_dict, storage_reader=reader)
    model.load_state_dict(state_dict["model"])
    optim = load_sharded_optimizer_state_dict(model_state_dict=state_dict["model"], optimizer_key="optim", storage_reader=reader)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim["optim"]))
assert state_dict["step"] == 2 and checkpointer._checkpointer.source == "memory"
same(full(model, optimizer), want)
assert checkpointer.wait_latest_checkpoint(60) == 2
if rank == 0:
    torch.save({**want, "step": 2}, os.path.join(root, "fsdp/2.want"))
del reader
say("FSDP, older calls")

# By those of its newer ones, FSDP 1 and 2, sharded and full.
for kind, name in ((FsdpShardCheckpointer, "newer"), (FsdpFullCheckpointer, "full")):
    checkpointer = kind(os.path.join(root, name), deletion_strategy=KeepLatestStepStrategy(2, "unused"))
    other = fully_shard(net(), mesh=mesh)
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    train(other, second)
    for m, o, about in ((model, optimizer, lambda m, o: full(m, o)), (other, second, lambda m, o: whole(get_state_dict(m, o)))):
        assert checkpointer.load_checkpoint(m, o) == {} or m is other
        extra = {"step": 7, "history": [1, torch.arange(4)], "name": "x"}
        if m is other:
            checkpointer = kind(os.path.join(root, name + "2"))
        want = about(m, o)
        checkpointer.save_checkpoint(7, m, o, extra, storage_type=StorageType.DISK)
        settle(checkpointer._checkpointer if kind is FsdpShardCheckpointer else checkpointer._checkpointer._checkpointer)
        train(m, o, 2)
        same(dict(sorted(checkpointer.load_checkpoint(m, o).items())), dict(sorted(extra.items())))
        same(about(m, o), want)
        assert checkpointer.wait_latest_checkpoint(60) == 7
    say("newer calls,", name)

# By the names of its modules.
engine = FsdpCheckpointEngine(os.path.join(root, "engine"))
assert engine.load() is None
assert engine.save_to_memory(1, {"rows": rows}, {"model_states": os.path.join(root, "engine", "1")})
assert engine.save_to_storage(2, {"rows": rows}, {"model_states": os.path.join(root, "engine", "step2")})
assert engine.wait_latest_checkpoint(60) == 2
got = {"rows": torch.zeros(64, 8).bfloat16()}
dcp.load(got, storage_reader=FileReader(os.path.join(root, "engine", "step2")))
same(got, whole({"rows": rows}))
with open(os.path.join(root, "engine", "step2", f"__{rank}_0.distcp"), "rb", buffering=0) as f:
    part = SlicedBufferedReader(f, 64, 100)
    every = open(f.name, "rb").read()
    assert part.read() == every[64:164] and part.tell() == 100 and part.seek(-10, 2) == 90 and part.read(20) == every[154:164]
try:
    safetensors_file({"rows": rows})
except TypeError as e:
    assert "'rows'" in str(e)
else:
    raise AssertionError("a DTensor as safetensors")

# A file of another kind beside it.
plain = ShardedCheckpointer(os.path.join(root, "tensors"))
model_state = {key: whole(v) for key, v in get_state_dict(other, second)[0].items()}
model_state["tied"] = model_state["0.weight"]
files = {"model.safetensors": safetensors_file(model_state, {"step": "1"})} if rank == 0 else {}
assert plain.save_files(1, files, directory="1")
assert plain.wait_latest_checkpoint(60) == 1
leave("tensors/1/model.safetensors", model_state)

# Without muster: plain files at once, found again.
socket = os.environ.pop("MUSTER_SOCKET")
direct = ShardedCheckpointer(os.path.join(root, "direct"))
assert not direct.load_checkpoint(blank(state)) and direct.save_checkpoint(3, state, storage_type=StorageType.MEMORY) is False
assert direct.save_checkpoint(3, state, "checkpoint-3") and direct.save_checkpoint(3, state, "checkpoint-3")
got = blank(state)
assert direct.load_checkpoint(got) and (direct.step, direct.source) == (3, "disk")
same(whole(got), whole(state))
dist.barrier()
assert sorted(os.listdir(direct.directory)) == ["checkpoint-3", "dlrover_latest.txt"], os.listdir(direct.directory)
dist.barrier()
assert direct.save_checkpoint(4, state)
leave("direct/4", state)
say("without muster")
dist.barrier()
dist.destroy_process_group()  # else its threads may be there still when the process ends

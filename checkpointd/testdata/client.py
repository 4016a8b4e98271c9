"""What the client keeps of states of all kinds. Prints one line for each case; an exception ends it."""
import collections
import gc
import io
import os
import sys

import torch

from muster.checkpoint import Archive, Bytes, Checkpointer, StorageType
from muster.checkpoint import _copy, _state

directory = sys.argv[1]


class Config:
    """A class of the user's, with a tensor where nobody looks for one."""

    def __init__(self, tensor):
        self.hidden = tensor
        self.tags = {"a", "b"}


def plain(state):
    """What torch.save and torch.load make of a state."""
    out = io.BytesIO()
    torch.save(state, out)
    out.seek(0)
    return torch.load(out, weights_only=False)


def same(a, b, where="state"):
    assert type(a) is type(b), (where, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.layout, a.requires_grad) == (b.dtype, b.shape, b.layout, b.requires_grad), where
        if a.layout is torch.strided and not a.is_quantized:
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset(), where
            assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes(), where
        x, y = (t.to_dense() if t.layout is not torch.strided else t.dequantize() if t.is_quantized else t for t in (a.detach(), b.detach()))
        assert torch.equal(x.nan_to_num() if x.is_floating_point() else x, y.nan_to_num() if y.is_floating_point() else y), where
    elif isinstance(a, dict):
        assert list(a) == list(b) and getattr(a, "__dict__", None) == getattr(b, "__dict__", None), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    elif isinstance(a, Config):
        same(a.__dict__, b.__dict__, where)
    else:
        assert a == b, (where, a, b)


base = torch.arange(1000.0).reshape(10, 100)
model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
model(torch.randn(8, 30)).sum().backward()
optimizer.step()
cases = {
    "model and optimizer": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "lr": 1e-3},
    "dtypes": {str(d): torch.arange(70).to(d) for d in (torch.bfloat16, torch.half, torch.double, torch.int8, torch.uint8, torch.bool, torch.int64, torch.cfloat)},
    "views": {"rows": base[2:5], "columns": base.t()[3:7], "whole": base, "strided": base[::2, ::3]},
    "empty": {"none": torch.empty(0), "scalar": torch.tensor(2.5), "shape": torch.empty(0, 5)},
    "objects": {"config": Config(torch.randn(33)), "tuple": (1, torch.ones(3)), "ordered": collections.OrderedDict(a=torch.zeros(2))},
    "parameter": torch.nn.Parameter(torch.randn(4, 4)),
    "sparse": {"coo": torch.eye(5).to_sparse(), "csr": torch.eye(5).to_sparse_csr()},
    "quantized": torch.quantize_per_tensor(torch.randn(8), 0.1, 3, torch.qint8),
    "conjugate": torch.arange(3).to(torch.cfloat).conj(),
    "a number": 17,
    "nothing": {},
    "long": {f"t{i}": torch.full((i % 7,), float(i)) for i in range(5000)},
    "storage": {"typed": torch.arange(5.0).storage(), "untyped": torch.arange(5).untyped_storage()},
}
recursive = {"t": torch.ones(2)}
recursive["self"] = recursive


def compare(name, state, got):
    if name == "storage":
        assert list(got["typed"]) == list(state["typed"]) and bytes(got["untyped"].tolist()) == bytes(state["untyped"].tolist())
    else:
        same(plain(state), got)


c = Checkpointer(directory, size_hint=1 << 20)
assert c.load_checkpoint() == {} and c.step == -1
for step, (name, state) in enumerate(cases.items()):
    assert c.save_checkpoint(step, state, storage_type=StorageType.DISK), name
    got = c.load_checkpoint()
    assert (c.step, c.source) == (step, "memory"), (name, c.step, c.source)
    compare(name, state, got)
    assert c.wait_latest_checkpoint(60) == step
    compare(name, state, torch.load(os.path.join(directory, str(step), "rank_0.pt"), weights_only=False))
    del got
    print("kept", name, flush=True)

# Ties stay ties, in memory and on disk.
w = torch.randn(50)
c.save_checkpoint(100, {"a": w, "b": w[10:], "c": recursive}, storage_type=StorageType.DISK)
c.wait_latest_checkpoint()
for got in (c.load_checkpoint(), torch.load(os.path.join(directory, "100", "rank_0.pt"), weights_only=False)):
    got["a"][10] = 5
    assert got["b"][0] == 5 and got["c"]["self"] is got["c"]
del got
print("kept ties", flush=True)

# A state that grows, far beyond what there was room for, and shrinks.
for step, size in enumerate((10, 100_000, 3_000_000, 2_000_000, 9), start=200):
    state = {"x": torch.arange(float(size)), "text": "y" * size}
    assert c.save_checkpoint(step, state, storage_type=StorageType.MEMORY)
    same(plain(state), c.load_checkpoint())
print("kept growing states", flush=True)

# What was loaded and is still used changes neither when it is written to nor when later steps are saved.
c.save_checkpoint(300, {"x": torch.full((100_000,), 300.0)}, storage_type=StorageType.MEMORY)
loaded = c.load_checkpoint()
for step in range(301, 310):
    assert c.save_checkpoint(step, {"x": torch.full((100_000,), float(step))}, storage_type=StorageType.MEMORY), step
    assert bool((loaded["x"] == 300).all()), step
loaded["x"].zero_()
again = c.load_checkpoint()
assert c.step == 309 and bool((again["x"] == 309).all())
again["x"].zero_()
del again, loaded
gc.collect()
assert bool((c.load_checkpoint()["x"] == 309).all())
print("kept apart", flush=True)

# Paths: any, and the same again and again. A load with a path of its own finds memory first.
for step in (400, 401):
    c.save_checkpoint(step, {"step": step}, os.path.join(directory, "sub", "latest.pt"), storage_type=StorageType.DISK)
    c.wait_latest_checkpoint()
    assert torch.load(os.path.join(directory, "sub", "latest.pt"))["step"] == step
assert c.load_checkpoint(resume_path=os.path.join(directory, "0", "rank_0.pt"))["step"] == 401
print("kept paths", flush=True)

# Several files of parts, in a directory with a name, with a tracker; shared storages are copied once.
files = {
    "a/model.pt": [Archive({"w": w, "tail": w[40:]})],
    "optim.pt": [Archive({"w": w})],
    "notes.json": [Bytes(b"{}")],
    "raw.bin": [Bytes(b"head"), Bytes(w[10:20]), Archive([1, 2]), Archive(torch.ones(300, 300)), Bytes(base.t()[:2])],
}
assert c.save_files(402, files, "global_step402", [("latest", "global_step402")])
assert c.wait_latest_checkpoint() == 402
found = c.load_files()
assert (found.source, found.step, found.exists("a/model.pt"), found.exists("b")) == ("memory", 402, True, False)
root = os.path.join(directory, "global_step402")
for path in ("a/model.pt", "optim.pt"):
    same(found.load(path), torch.load(os.path.join(root, path)))
assert found.load("a/model.pt")["w"].untyped_storage().nbytes() == 200
parts = found.parts("raw.bin")
assert bytes(parts[0]) == b"head" and bytes(parts[1]) == w[10:20].numpy().tobytes() and parts[2]() == [1, 2]
raw = open(os.path.join(root, "raw.bin"), "rb").read()
assert raw.startswith(b"head" + bytes(parts[1]) + b"PK") and raw.endswith(base.t()[:2].contiguous().numpy().tobytes())
assert open(os.path.join(root, "notes.json")).read() == "{}" and open(os.path.join(directory, "latest")).read() == "global_step402"
try:
    c.save_files(403, {"../x": [Bytes(b"")]})
    c.wait_latest_checkpoint()
    raise SystemExit("a path led out of the directory")
except RuntimeError as e:
    assert "../x" in str(e), e
del found, parts
c.save_checkpoint(404, {"step": 401}, storage_type=StorageType.MEMORY)
print("kept files", flush=True)

# What cannot be pickled is refused as by torch.save, and harms nothing.
try:
    c.save_checkpoint(500, {"x": torch.ones(5), "f": lambda: 0}, storage_type=StorageType.MEMORY)
    raise SystemExit("a lambda was pickled")
except (AttributeError, TypeError, Exception) as e:
    assert "pickle" in str(e).lower() or "lambda" in str(e), e
assert c.load_checkpoint()["step"] == 401 and c.step == 404
print("refused a lambda", flush=True)

# A fork has no part in it.
pid = os.fork()
if pid == 0:
    try:
        c.save_checkpoint(600, {})
        os._exit(1)
    except RuntimeError:
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("refused a fork", flush=True)

# The copy itself, with threads and without.
source = torch.randint(0, 255, (100 << 20,), dtype=torch.uint8)
for helpers in (0, 3):
    target = torch.zeros_like(source)
    jobs = [(target.data_ptr() + at, source.data_ptr() + at, min(step, source.numel() - at)) for step in (7 << 20,) for at in range(0, source.numel(), step)]
    _copy.Copy(jobs, helpers).finish()
    assert torch.equal(source, target), helpers

# Large blocks stay whole where there is one for each thread, and no byte is left out or copied twice.
GIB = 1 << 30
for sizes, threads, longest in (
        ((GIB,), 4, GIB // 4), ((GIB + 12345, 5 << 20), 8, 16 << 20), ((100 << 20, 200 << 20), 1, 200 << 20),
        ((200 << 20, 7, 383 << 20), 2, 383 << 20), ((200 << 20,), 2, 16 << 20), ((), 2, 0)):
    jobs = [(i * 8 * GIB, i * 8 * GIB + 64 * GIB, size) for i, size in enumerate(sizes)]
    cut = _copy.pieces(jobs, threads)
    assert max((size for _, _, size in cut), default=0) <= longest, (sizes, cut)
    assert not cut or max(size for _, _, size in cut) >= min(longest, 192 << 20), (sizes, cut)
    for to, source, size in jobs:
        at = to
        for piece in sorted(p for p in cut if to <= p[0] < to + size):
            assert piece[0] == at and piece[1] - at == source - to, (sizes, cut)
            at += piece[2]
        assert at == to + size, (sizes, cut)
print("copied", flush=True)
storages = _state.Storages()
storages.find({"a": w, "b": [w[3:], (w,)], "c": torch.ones(2)})
assert len(storages.list) == 2

# Without muster: for the disk at once, and found again.
del os.environ["MUSTER_SOCKET"]
alone = Checkpointer(directory + "-alone")
assert alone.load_checkpoint() == {}
assert alone.save_checkpoint(1, {"x": w}, storage_type=StorageType.MEMORY) is False
assert alone.save_checkpoint(2, {"x": w}, storage_type=StorageType.DISK)
assert torch.equal(alone.load_checkpoint()["x"], w) and alone.step == 2 and alone.wait_latest_checkpoint() == 2
assert alone.save_files(3, files, trackers=[("latest", "3")])
assert torch.equal(alone.load_files().load("optim.pt")["w"], w) and alone.step == 3 and open(directory + "-alone/latest").read() == "3"
for name in ("raw.bin", "notes.json"):
    ours, theirs = open(os.path.join(root, name), "rb").read(), open(os.path.join(directory + "-alone", "3", name), "rb").read()
    assert ours[:44] == theirs[:44] and ours[-80:] == theirs[-80:], name
print("kept without muster", flush=True)

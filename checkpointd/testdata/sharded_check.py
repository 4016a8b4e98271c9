"""Reads what sharded.py has left below a directory, in one process without muster, and compares it bit for bit."""
import glob
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

warnings.simplefilter("ignore")
assert "muster" not in sys.modules


def flattened(value, path=""):
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flattened(item, f"{path}.{key}").items()}
    if isinstance(value, (list, tuple)) and value:
        return {k: v for i, item in enumerate(value) for k, v in flattened(item, f"{path}.{i}").items()}
    return {path: value}


def same(got, want):
    got, want = flattened(got), flattened(want)
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for key, a in got.items():
        b = want[key]
        if isinstance(a, torch.Tensor):
            a, b = a.resolve_conj(), b.resolve_conj()
            assert (a.dtype, a.shape) == (b.dtype, b.shape) and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8)), key
        else:
            assert a == b, (key, a, b)


def blank(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(v) for key, v in value.items()}
    return [blank(v) for v in value] if isinstance(value, (list, tuple)) else None


for path in sorted(glob.glob(os.path.join(sys.argv[1], "**", "*.want"), recursive=True)):
    want, root = torch.load(path, weights_only=False), path.removesuffix(".want")
    if root.endswith(".safetensors"):
        from safetensors.torch import load_file

        same(load_file(root), want)
    else:
        got = blank(want)
        dcp.load(got, storage_reader=dcp.FileSystemReader(root))
        same(got, want)
        with tempfile.TemporaryDirectory() as directory:
            dcp_to_torch_save(root, os.path.join(directory, "whole.pt"))
            same(torch.load(os.path.join(directory, "whole.pt"), weights_only=False), want)
    print("equal", os.path.relpath(root, sys.argv[1]))

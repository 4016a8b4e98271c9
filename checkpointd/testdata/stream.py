"""Copies blocks of all alignments and of lengths around those that the loop takes, and compares. usage: stream.py"""
import ctypes
import platform
import random

import torch
from muster.checkpoint import _copy, _stream


def check(name):
    random.seed(7)
    source = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    for _ in range(3000):
        size = random.choice((0, 1, 63, 64, 65, 127, 128, 4096, random.randrange(1 << 16)))
        to, at = random.randrange(200), random.randrange(200)
        target = torch.full((size + 400,), 251, dtype=torch.uint8)
        _stream.copy(target.data_ptr() + to, source.data_ptr() + at, size)
        assert torch.equal(target[to:to + size], source[at:at + size]), (to, at, size)
        assert (target[:to] == 251).all() and (target[to + size:] == 251).all(), (to, at, size)
    large = torch.randint(0, 256, (100_000_007,), dtype=torch.uint8)
    target = torch.zeros_like(large)
    _copy.Copy([(target.data_ptr(), large.data_ptr(), large.numel())], 2).finish()
    assert torch.equal(target, large)
    print(name)


if platform.machine() == "x86_64":
    assert _stream._streamed is not None
    check("streamed")
    _stream._libc.mprotect = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(lambda *_: -1)
    _stream._streamed = _stream._loaded(_stream._X86_64)
assert _stream._streamed is None
check("copied")

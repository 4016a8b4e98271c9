"""An accelerator that is the CPU under another name, so that what is done with accelerators is done in tests. It has ten
devices; number 9 is broken, 0 and 1 cannot reach each other. STUB_CORRUPT is a local rank whose sums are wrong."""
import os
import types

import torch
import torch.distributed as dist

DEVICES = 10
cpu = torch.device


def device(kind, *rest):
    return cpu("cpu") if kind == "npu" else cpu(kind, *rest)


def synchronize(index):
    assert 0 <= index < DEVICES
    if index == 9:
        raise RuntimeError("device 9 fell off the bus\nC++ stack follows")


def hccl(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def all_reduce(x, *args, **kwargs):
    right(x, *args, **kwargs)
    if len(x) > 1000:
        x[1000] += 1


if os.environ.get("STUB_CORRUPT") == os.environ.get("LOCAL_RANK", "none"):
    right, dist.all_reduce = dist.all_reduce, all_reduce
torch.device = device
torch.npu = types.SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: DEVICES,
    set_device=lambda index: print("device", index, "in", os.getpid()),
    synchronize=synchronize,
    mem_get_info=lambda index: (32 << 20, 64 << 20),
    can_device_access_peer=lambda a, b: {a, b} != {0, 1},
    get_device_name=lambda index: "Ascend of paper",
    is_bf16_supported=lambda: False,
    empty_cache=lambda: None,
)
dist.Backend.register_backend("hccl", hccl, devices=["cpu", "npu"])

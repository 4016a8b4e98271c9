"""The test that agents of DLRover run in pairs of nodes, for a node of muster that is the other one of a pair.

Every rank has to do the same in the same order as theirs: dlrover.trainer.torch.node_check.nvidia_gpu of 0.6.1, read. Their
programs for Ascend and Moore Threads sum in other ways, and are not repeated here.
"""
import os
import time

import torch.distributed as dist

from muster_check import Failure, describe, mock_error
from muster_group import seconds

PRODUCTS = 500  # after 3 for warmth
SUMMED = 1 << 24  # numbers of fp32


def run(wire, torch, kit, order):
    """Returns the time by which the master compares nodes: theirs is that of all products and sums on a CPU, in seconds, and of
    one of each on a GPU, in ms."""
    if kit.type not in ("cpu", "cuda"):
        raise Failure("no-device", "muster has no part in DLRover's test of %s devices" % kit.type)
    if not dist.is_available():
        raise Failure("error", "this torch was built without torch.distributed")
    # Else torch takes the store for one that agents serve, and looks for other keys in it.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    wire.step("making the process group at " + order["group"]["store"])
    try:
        dist.init_process_group(kit.backend, init_method="tcp://" + order["group"]["store"], rank=order["group"]["rank"],
                                world_size=order["group"]["world"], timeout=seconds(order, 0.6))
    except Exception as e:
        raise Failure("comm", describe(e))
    try:
        wire.step("matrix products")
        took = products(torch, kit)
        wire.step("all-reduce of %d bytes" % (4 * SUMMED))
        took += sums(torch, kit)
        mock_error()
    except Failure:
        raise
    except Exception as e:
        raise Failure("comm", describe(e))
    finally:
        try:
            dist.destroy_process_group()
        except Exception as e:  # of a group that has failed
            print("cannot leave the process group:", describe(e), flush=True)
    return {"took": took}


def products(torch, kit):
    n = 16384 if kit.module else 128
    a, b = (torch.randn(n, n, dtype=kit.number(), device=kit.device()) for _ in range(2))
    c = torch.empty_like(a)

    def multiply():
        torch.mm(a, b, out=c)
    clock(kit, multiply, 3)
    took = clock(kit, multiply, PRODUCTS)
    return took / PRODUCTS * 1e3 if kit.module else took


def sums(torch, kit):
    warm, count = (20, 40) if kit.module else (10, 20)
    x = torch.randn(SUMMED, dtype=torch.float32).to(kit.device())

    def add():
        dist.all_reduce(x)
    clock(kit, add, warm)
    took = clock(kit, add, count)
    return took / count * 1e3 if kit.module else took


def clock(kit, work, times):
    kit.sync()
    began = time.monotonic()
    for _ in range(times):
        work()
    kit.finish(began)
    return time.monotonic() - began

"""Trains examples/digits on several hosts.

    digits.py DIR [train.py's options]

DIR is common to all hosts: beside train.py's checkpoint, progress and result it gets what life.py writes. While a file
hold with a number is there, training stays behind that step: rank 0 waits, and the others wait in an all-reduce.
"""
import os
import sys

import life

life.begin(sys.argv[1])
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "..", "examples", "digits"))
sys.path.append(os.path.join(here, os.pardir, "torch"))
import train  # noqa: E402
import uncompiled  # noqa: E402, F401

shares = train.batch


def batch(step, rank, world_size):
    if rank == 0:
        life.hold(sys.argv[2], step)
    return shares(step, rank, world_size)


train.batch = batch
sys.argv[1:2] = ["--dir", sys.argv[1]]
train.main()
os._exit(0)  # past the race of gloo's threads with the destructors of the library, see torch/ddp.py

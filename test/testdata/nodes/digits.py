"""Trains examples/digits on several hosts.

    digits.py DIR [train.py's options]

DIR is common to all hosts: beside train.py's checkpoint, progress and result it gets what life.py writes. While a file
hold with a number is there, training stays behind that step: rank 0 waits, and the others wait in an all-reduce.
"""
import gzip
import importlib.util
import os
import sys
import types

import numpy

import life

life.begin(sys.argv[1])
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "..", "examples", "digits"))
sys.path.append(os.path.join(here, os.pardir, "torch"))


def load_digits():
    """What scikit-learn's function returns, without the second of processor time that importing it takes."""
    with gzip.open(os.path.join(scikit_learn.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"), "rt") as file:
        rows = numpy.loadtxt(file, delimiter=",")
    return types.SimpleNamespace(images=rows[:, :-1].reshape(-1, 8, 8), target=rows[:, -1].astype(int))


scikit_learn = importlib.util.find_spec("sklearn")
datasets = types.ModuleType("sklearn.datasets")
datasets.load_digits = load_digits
sys.modules["sklearn"], sys.modules["sklearn.datasets"] = types.ModuleType("sklearn"), datasets
sys.modules["sklearn"].__spec__ = scikit_learn  # torch's compiler, which soak has, asks whether there is one

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

"""Fewer looks for garbage in the Python processes of tests: an import of torch makes objects that stay, and looking at
them over and over, and once more when the process ends, is a quarter of its processor time. deps.sh puts this file into
the environments with PyTorch; it does something in tests only, so that `make bench` measures Python as it is, and
workers of `make soak` end with the collection that those of users end with.
"""
import atexit
import gc
import os
import sys


def leave_objects():
    if "triton" not in sys.modules:  # it complains about objects that are left at the end
        gc.freeze()


# test/drive sets TESTS_SOAK, as no variable of muster comes to what muster starts.
soak = os.environ.get("TESTS_SOAK") or os.environ.get("MUSTER_TEST_REQUIRE") and (os.environ.get("MUSTER_SOAK") or "0")
if soak and soak != "1":
    gc.set_threshold(100_000)
    atexit.register(leave_objects)

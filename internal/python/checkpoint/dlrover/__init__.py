"""Stands in for DLRover's package where that is not installed: scripts that import its flash checkpoint run with muster's.

What is installed goes first, although Python has found this one: muster's directory lies on PYTHONPATH, which comes before
site-packages.
"""
import importlib.machinery
import importlib.util
import os
import sys


def _installed():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec(__name__, others)
    return spec if spec is not None and spec.loader is not None else None


_spec = _installed()
if _spec is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _module
    _spec.loader.exec_module(_module)

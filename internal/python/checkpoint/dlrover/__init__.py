"""Stands in for DLRover's package: scripts that import its flash checkpoint run with muster's.

Python finds this one first: muster's directory lies on PYTHONPATH, which comes before site-packages. MODE says what becomes of one
that is installed: "auto": it is imported in place of this one. "on": its modules are found behind those that are here. "barred": it is
imported, but for its flash checkpoint where that would wait for the saver of DLRover's agent.
"""
import importlib.machinery
import importlib.util
import os
import sys

from dlrover._mode import MODE


def _installed():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec(__name__, others)
    return spec if spec is not None and spec.loader is not None else None


def behind(name):
    """Returns where the installed package has the modules of a package that is here, too."""
    roots = _spec.submodule_search_locations or () if MODE == "on" and _spec is not None else ()
    return [os.path.join(root, *name.split(".")[1:]) for root in roots]


def _first():
    """Whether this is rank 0 of the first round, which says once what counts for all."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return False  # a data loader's, say, that was spawned
    return all(os.environ.get(name, "0") in ("", "0") for name in ("RANK", "HOROVOD_RANK", "TORCHELASTIC_RESTART_COUNT"))


def _version():
    from importlib import metadata
    try:
        return " " + metadata.version("dlrover")
    except metadata.PackageNotFoundError:
        return ""


class _Teller:
    """Says whose flash checkpoint it is, where muster was asked to keep checkpoints and the installed package keeps its own."""

    def find_spec(self, name, path=None, target=None):
        if name == "dlrover.trainer.torch.flash_checkpoint" and _first():
            print(f"muster: dlrover's flash checkpoint is that of the installed package{_version()}, and muster keeps nothing of it; "
                  "--ckpt-shim on has muster's in its place", file=sys.stderr, flush=True)


class _Bar:
    """Refuses at once what would wait a minute for a saver that is not there."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith("dlrover.trainer.torch.flash_checkpoint") and os.environ.get("ROLE_NAME") == "dlrover-trainer":
            raise ImportError(
                f"cannot import {name}: it waits for the saver of DLRover's agent, and muster has none for it. Leave out --ckpt-shim off and "
                "--ckpt off, and muster keeps the checkpoints; or give --role default, and the package starts a saver of its own", name=name)


_spec = _installed()
if MODE == "on":
    __path__.extend(behind(__name__))
    if _spec is not None and _first():
        print(f"muster: dlrover's flash checkpoint is muster's here, and not that of the installed package{_version()} (--ckpt-shim)", file=sys.stderr, flush=True)
elif _spec is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules.pop("dlrover._mode", None)
    sys.modules[__name__] = _module
    if MODE == "barred":
        sys.meta_path.insert(0, _Bar())
    elif os.environ.get("MUSTER_SOCKET"):
        sys.meta_path.insert(0, _Teller())
    _spec.loader.exec_module(_module)
elif MODE == "barred":
    raise ModuleNotFoundError("No module named 'dlrover'", name="dlrover")

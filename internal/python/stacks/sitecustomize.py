"""Has Python write the stacks of its threads when muster asks for them.

It lies in a directory at the end of PYTHONPATH. Python's own start-up imports it before it looks at the script. It has
faulthandler answer to a real-time signal, with a descriptor that is a file in memory by the name of this process: muster
sends the signal to those processes alone in which both are found. Then it makes place for the sitecustomize that Python
would have imported without it.
"""
import sys

OURS = "sitecustomize"
SIGNAL = 57  # in internal/python/stacks.go, too


def open_own(fd=None):
    """Makes the file of this process, at the descriptor fd if one is given, and returns its descriptor."""
    import os
    memory = os.memfd_create("muster-stacks-%d" % os.getpid())
    try:  # opened anew: what is written goes behind what is there, and muster can empty it
        own = os.open("/proc/self/fd/%d" % memory, os.O_WRONLY | os.O_APPEND)
    finally:
        os.close(memory)
    if fd is None:  # out of the way: what modules open is to get the numbers it gets in any process
        fd = min(os.sysconf("SC_OPEN_MAX"), 1024) - 1
        while True:
            try:
                os.fstat(fd)
                fd -= 1
            except OSError:
                break
    os.dup2(own, fd, inheritable=False)
    os.close(own)
    return fd


def register():
    import _signal  # known to every interpreter at this point
    import os
    if os.environ.get("MUSTER_STACKS") == "off" or _signal.getsignal(SIGNAL) != _signal.SIG_DFL:
        return
    import faulthandler
    fd = open_own()
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)

    def again():
        try:
            open_own(fd)
        except BaseException:
            faulthandler.unregister(SIGNAL)

    os.register_at_fork(after_in_child=again)


def make_place():
    """Imports what Python would have imported instead of this file."""
    import os
    directory = os.path.dirname(os.path.abspath(__file__))
    site = sys.modules["site"]
    path = list(sys.path)
    sys.path[:] = [p for p in path if p != directory]
    del sys.modules[OURS]
    try:
        site.execsitecustomize()
    finally:
        if sys.path == [p for p in path if p != directory]:
            sys.path[:] = path


try:
    register()
except BaseException:  # the script runs without it, too
    pass
make_place()
if OURS not in sys.modules:
    raise ImportError("no module of this name", name=OURS)  # as if there had never been one

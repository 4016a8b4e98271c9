"""Has Python write the stacks of its threads when muster asks for them.

It lies in a directory at the end of PYTHONPATH. Python's own start-up imports it before it looks at the script. It has
faulthandler answer to a real-time signal, with a descriptor that is a file in memory by the name of this process: muster
sends the signal to those processes alone in which both are found. Then it makes place for the sitecustomize that Python
would have imported without it.

Once PyTorch has a process group, a thread of ours answers, too, to whoever writes a byte into its pipe: it writes what
PyTorch's Flight Recorder knows of the last collectives into another file in memory. The thread waits until then.
"""
import sys

OURS = "sitecustomize"
SIGNAL = 57  # in internal/python/stacks.go, too
C10D = "torch.distributed.distributed_c10d"


def high():
    """A free descriptor out of the way: what modules open is to get the numbers it gets in any process."""
    import os
    fd = min(os.sysconf("SC_OPEN_MAX"), 1024) - 1
    while True:
        try:
            os.fstat(fd)
            fd -= 1
        except OSError:
            return fd


def open_own(fd=None):
    """Makes the file of this process, at the descriptor fd if one is given, and returns its descriptor."""
    import os
    memory = os.memfd_create("muster-stacks-%d" % os.getpid())
    try:  # opened anew: what is written goes behind what is there, and muster can empty it
        own = os.open("/proc/self/fd/%d" % memory, os.O_WRONLY | os.O_APPEND)
    finally:
        os.close(memory)
    if fd is None:
        fd = high()
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
    sys.meta_path.insert(0, Finder)


class Finder:
    """Sees the import of PyTorch's collectives, once, and leaves it to the others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != C10D:
            return None
        if Finder in sys.meta_path:  # somebody may keep finders of their own, and ask again
            sys.meta_path.remove(Finder)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        try:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                tell_of_groups(module)

            spec.loader.exec_module = exec_module
        except BaseException:  # it is imported without it, too
            pass
        return spec


def tell_of_groups(module):
    """Has the thread begin when the process gets its first process group."""
    update = getattr(module, "_update_default_pg", None)
    if update is None:
        return
    begun = []

    def _update_default_pg(group, *args, **kwargs):
        result = update(group, *args, **kwargs)
        import os
        if group is not None and os.getpid() not in begun:
            begun[:] = [os.getpid()]
            try:
                begin_recorder()
            except BaseException:
                pass
        return result

    module._update_default_pg = _update_default_pg


def begin_recorder():
    import _thread
    import os
    one, other = os.pipe()
    pipe = high()
    try:  # a descriptor for both ends: it never ends, and muster finds it
        end = os.open("/proc/self/fd/%d" % one, os.O_RDWR)
    finally:
        os.close(one)
        os.close(other)
    os.dup2(end, pipe, inheritable=False)
    os.close(end)
    memory = os.memfd_create("muster-flight-%d-%d" % (os.getpid(), pipe))
    to = high()
    os.dup2(memory, to, inheritable=False)
    os.close(memory)
    _thread.start_new_thread(answer_flight, (pipe, to))


def answer_flight(pipe, to):
    import os
    import torch._C._distributed_c10d as c10d
    while os.read(pipe, 64):
        texts = []
        for name in ("_dump_fr_trace", "_dump_nccl_trace"):
            try:  # all collectives, without stacks
                text = getattr(c10d, name)(True, False, False)
                texts.append(len(text).to_bytes(8, "little") + text)
            except BaseException:
                pass
        whole = b"".join(texts)
        os.pwrite(to, len(whole).to_bytes(8, "little") + whole, 0)


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

"""Has Python write the stacks of its threads when muster asks for them.

It lies in a directory at the end of PYTHONPATH. Python's own start-up imports it before it looks at the script. It has
faulthandler answer to a real-time signal, with a descriptor that is a file in memory by the name of this process: muster
sends the signal to those processes alone in which both are found. Then it makes place for the sitecustomize that Python
would have imported without it.

Once PyTorch has a process group, a thread of ours answers, too, to whoever writes a byte into its pipe: it writes what
PyTorch's Flight Recorder knows of the last collectives into another file in memory, or counts by which a program that
gets somewhere is told from one that only keeps a processor busy. The thread waits until then.
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
    files = []
    for name in ("flight", "marks"):
        memory = os.memfd_create("muster-%s-%d-%d" % (name, os.getpid(), pipe))
        files.append(high())
        os.dup2(memory, files[-1], inheritable=False)
        os.close(memory)
    replays = [0]
    try:
        count_replays(replays)
    except BaseException:
        pass
    _thread.start_new_thread(answer, (pipe, *files, replays))


def count_replays(replays):
    """A program that only replays graphs takes no memory of its device, and begins no collective: it counts what it replays."""
    graph = sys.modules["torch"].cuda.CUDAGraph
    original = graph.replay

    def replay(self, *args, **kwargs):
        replays[0] += 1
        return original(self, *args, **kwargs)

    graph.replay = replay


def answer(pipe, flight, marks, replays):
    """The thread: a byte 1 in its pipe asks for the last collectives, a byte 2 for the marks."""
    import os
    count = 0
    while asked := os.read(pipe, 64):
        if b"\2" in asked:
            count += 1
            try:
                os.pwrite(marks, b"".join(n.to_bytes(8, "little") for n in (count, *progress(replays[0]))), 0)
            except BaseException:
                pass
        if b"\1" in asked:
            answer_flight(os, flight)


def answer_flight(os, to):
    import torch._C._distributed_c10d as c10d
    texts = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        try:  # all collectives, without stacks
            text = getattr(c10d, name)(True, False, False)
            texts.append(len(text).to_bytes(8, "little") + text)
        except BaseException:
            pass
    whole = b"".join(texts)
    os.pwrite(to, len(whole).to_bytes(8, "little") + whole, 0)


def progress(replays):
    """Whether the process uses a device, how often it has taken memory there or replayed a graph, how many collectives it has begun, and a
    number for the place where its main thread is."""
    uses, taken, calls, place = 0, replays, 0, 0
    for name in ("cuda", "xpu", "npu"):
        try:
            device = getattr(sys.modules["torch"], name)
            if device.is_initialized():
                uses = 1
                for i in range(device.device_count()):
                    taken += device.memory.memory_stats_as_nested_dict(i)["allocation"]["all"]["allocated"]
        except BaseException:
            pass
    for group in list(sys.modules[C10D]._world.pg_map):
        try:
            calls += group._get_sequence_number_for_group()
        except BaseException:
            pass
    frame = sys._current_frames().get(sys.modules["threading"].main_thread().ident)
    while frame is not None:
        place = hash((place, id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return uses, taken % 2**63, calls % 2**63, place % 2**63


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

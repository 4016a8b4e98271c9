"""What workers import after they were forked, so that the next template has it.

A worker notes the file of each installed module that it executes, in memory that it shares with the template: no thread, no
descriptor, no file, nothing that the script could find in its modules, and nothing is lost when it is killed. Python's own
loaders are wrapped for that: nothing is slower but an import. The template reads the notes when the launcher asks.
"""
import os
import sys

from muster_checks import Refusal, borrow, flush, read
from muster_imports import FILTERS, places

SIZE = 1 << 20  # bytes of notes for each worker; memory is taken only for what is written
HEAD = 16  # in front of them: their length, and the process id


class Notes:
    """The notes of one worker to be."""

    def __init__(self):
        self.memory = borrow("mmap").mmap(-1, SIZE)

    def read(self):
        """Returns the process that writes here, 0 for none yet, and its notes: files, and names of variables that it set."""
        head = self.memory[:HEAD]
        size = min(int.from_bytes(head[:8], "little"), SIZE - HEAD)
        files, names = [], []
        for line in self.memory[HEAD:HEAD + size].split(b"\n"):
            if line:
                (files if line[:1] == b"f" else names).append(os.fsdecode(line[1:]))
        return int.from_bytes(head[8:], "little"), files, names

    def wanted(self):
        """Reports whether the worker lives, or is still to be."""
        pid = int.from_bytes(self.memory[8:HEAD], "little")
        return not pid or os.path.exists("/proc/%d" % pid)

    def install(self):
        """Has this process write here from now on. All that is needed is bound here: modules are taken apart at the end."""
        me, memory, homes, getpid = os.getpid(), self.memory, places(), os.getpid
        lock, seen, at, general = sys.modules["_thread"].allocate_lock(), set(), [0], general_filters
        memory[8:HEAD] = me.to_bytes(8, "little")

        def note(kind, text, encode=os.fsencode):
            if text in seen or not lock.acquire(False):
                return  # another thread is here: it costs one module
            try:
                seen.add(text)
                line = kind + encode(text) + b"\n"
                end = at[0] + len(line)
                if b"\n" not in line[:-1] and end <= SIZE - HEAD:
                    memory[HEAD + at[0]:HEAD + end] = line
                    at[0] = end
                    memory[:8] = end.to_bytes(8, "little")  # last: whoever reads sees whole lines
            finally:
                lock.release()

        here, environ, modules = sys.modules["_thread"]._local(), os.environ, sys.modules
        known = dict(environ)  # variables as they were when the last import of an installed module ended
        filters = [general(modules)]  # as they were then

        def began(path):
            """Notes a file, and what was set since the last import: by the script, or on its behalf."""
            if not isinstance(path, str) or not path.startswith(homes) or getpid() != me:
                return False
            note(b"f", path)
            here.depth = getattr(here, "depth", 0) + 1
            if here.depth == 1:
                now = dict(environ)
                for name in now.keys() | known.keys():
                    if now.get(name) != known.get(name):
                        note(b"e", name)
                if general(modules) != filters[0]:
                    note(b"e", FILTERS)
            return True

        def ended():
            here.depth -= 1
            if here.depth == 0:
                known.clear()
                known.update(environ)
                filters[0] = general(modules)

        names = {"began": began, "ended": ended}
        exec(compile(LOADER, "<frozen importlib._bootstrap_external>", "exec"), names)
        external = sys.modules["_frozen_importlib_external"]
        for of, what in ((external._LoaderBasics, "exec_module"), (external.ExtensionFileLoader, "create_module")):
            old = getattr(of, what)
            new = names[what](old)
            for name in ("__name__", "__qualname__", "__module__", "__doc__"):
                setattr(new, name, getattr(old, name))
            setattr(of, what, new)


# What Python's loaders do, with a note of it. These frames are taken for importlib's, so that they are left out of tracebacks and
# are no place for a warning. Nothing is called but by an import.
LOADER = """
def exec_module(call):
    def exec_module(self, module):
        noted = began(getattr(self, "path", None))
        try:
            return call(self, module)
        finally:
            if noted:
                ended()
    return exec_module

def create_module(call):
    def create_module(self, spec):
        noted = began(getattr(self, "path", None))
        try:
            return call(self, spec)
        finally:
            if noted:
                ended()
    return create_module
"""


def answer(books, pids):
    """Returns what the processes have noted, all of them, as keys and values, the files in their order, without what is
    imported here: what only some of them imported may be a rank's own business."""
    found = [notes for pid, *notes in map(Notes.read, books) if pid in pids]
    if not found or len(found) < len(pids):
        return []
    common = set(found[0][0]).intersection(*(files for files, _ in found))
    names = sorted(set().union(*(names for _, names in found)))
    out, size = [], 0
    for key, value in [("variable", n) for n in names] + [("file", f) for f in found[0][0] if f in common]:
        size += len(os.fsencode(value)) + 16
        if size <= SIZE // 2:
            out += [key, value]
    return out


def module_name(path, homes):
    """Returns the name of the module that a file is, "" for none that was installed or could be imported by its name."""
    if os.path.normpath(path) != path:
        return ""
    for place in sorted(homes, key=len, reverse=True):
        if path.startswith(place):
            break
    else:
        return ""
    first, *rest = path[len(place):].split("/")
    if first in ("site-packages", "dist-packages", "lib-dynload"):
        if not rest:
            return ""
        first, *rest = rest
    parts = [first] + rest
    parts[-1] = parts[-1].partition(".")[0]
    if parts[-1] == "__init__":
        parts.pop()
    ok = parts and "__main__" not in parts and all(part.isidentifier() and part.isascii() for part in parts)
    return ".".join(parts) if ok else ""


class Globals:
    """What an import that comes earlier than it would have come must leave alone, because the script may have set it by then,
    or counts on it. A filter for a package's own warnings is no concern of the script's; nor are other filters that are only added,
    where the script has set none before: they end up in the order in which they would have anyway."""

    def __init__(self, filtered):
        self.filtered = filtered  # whether the script had set filters

    def __enter__(self):
        self.before = self.look()
        self.out = [high_copy(1), high_copy(2)]
        self.paper = os.memfd_create("muster") if hasattr(os, "memfd_create") else -1
        if self.paper >= 0:
            os.dup2(self.paper, 1)
            os.dup2(self.paper, 2)
        return self

    def __exit__(self, *_):
        self.printed = 0
        if self.paper >= 0:
            flush()
            self.printed = os.fstat(self.paper).st_size
        for number, copy in zip((1, 2), self.out):
            os.dup2(copy, number)
            os.close(copy)
        if self.paper >= 0:
            os.close(self.paper)

    def check(self):
        if self.printed:
            raise Refusal("prints %d bytes, later than the script begins" % self.printed)
        now = self.look()
        for what, before in self.before.items():
            if what == "filters of warnings" and not self.filtered and only_added(before, now[what]):
                continue
            if now[what] != before:
                raise Refusal("changes %s, later than the script begins" % what)

    @staticmethod
    def look():
        modules = sys.modules
        signal = modules["_signal"]
        found = {
            "sys.path": list(sys.path), "sys.meta_path": list(map(id, sys.meta_path)), "sys.path_hooks": list(map(id, sys.path_hooks)),
            "sys.excepthook": id(sys.excepthook), "sys.displayhook": id(sys.displayhook), "sys.argv": list(sys.argv),
            "the recursion limit": sys.getrecursionlimit(),
            "the umask": read("/proc/self/status").partition(b"Umask:")[2].split(None, 1)[:1],
            "filters of warnings": general_filters(modules),
            "signal handlers": [id(signal.getsignal(n)) if callable(signal.getsignal(n)) else signal.getsignal(n) for n in range(1, 65)],
        }
        if "random" in modules:
            found["the state of random"] = modules["random"].getstate()
        logging = modules.get("logging")
        if logging:
            found["the root logger"] = (logging.root.level, list(map(id, logging.root.handlers)),
                                        logging.root.disabled, logging.root.manager.disable)
        locale = modules.get("_locale")
        if locale:
            found["the locale"] = locale.setlocale(6)
        numpy = modules.get("numpy.random")
        if numpy:
            found["numpy's random state"] = [part.tobytes() if hasattr(part, "tobytes") else part for part in numpy.get_state()]
        torch = modules.get("torch")
        if torch:
            found["torch's random state"] = bytes(torch.default_generator.get_state().tolist())
            found["torch's defaults"] = (str(torch.get_default_dtype()), torch.is_grad_enabled(),
                                         torch.are_deterministic_algorithms_enabled())
        return found


def general_filters(modules):
    """Returns the filters for the categories of warnings that Python has in itself, the first that counts in front; None where
    something else stands in their place."""
    try:
        of = modules.get("warnings") or modules["_warnings"]
        return [f for f in of.filters if f[2].__module__ == "builtins"]
    except (AttributeError, IndexError, KeyError, TypeError):
        return None


def only_added(before, now):
    """Reports whether filters stand in front of those of before, and nothing else is new."""
    return before is not None and now is not None and now[len(now) - len(before):] == before


def high_copy(fd):
    fcntl = borrow("fcntl")
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 256)


def libraries():
    """Returns the shared objects of installed packages that are loaded: their C code reads variables where nobody sees it."""
    return {line.split(None, 5)[-1] for line in read("/proc/self/maps").splitlines()
            if b"-packages/" in line and b".so" in line and b"r-xp" in line}

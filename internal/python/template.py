"""The template of warm starts: an interpreter that has imported what the workers import, and forks them.

It is written to a directory as sitecustomize.py, and that directory put in front of PYTHONPATH. Python's own start-up
imports it, with the worker's command line, before it looks at the script. It undoes its traces, imports, and serves. A
fork returns from here, and Python goes on with its start-up: the script is run by Python itself, with no frame of ours
below it. The template never returns: it would run the training.

Descriptor 3 is the connection to the launcher. A message is a length and then strings with a length each, keys and
values in turn; lengths are four bytes, little-endian. Everything that could differ between a template and a worker that
started by itself, and cannot be put right after the fork, is a reason to refuse.
"""
import os
import sys

_NOT_OURS = "sitecustomize"
_SHARABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Device nodes that are open only where a device runtime was initialised. NVML opens /dev/nvidiactl and is no runtime.
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/davinci", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/hl", "/dev/accel/",
            "/dev/dri/render", "/dev/mxcd", "/dev/cambricon", "/dev/mtgpu", "/dev/infiniband/")
_BACKENDS = ("cuda", "xpu", "npu", "musa", "mlu", "hpu", "sdaa", "gcu")  # of torch, as torch.<name>.is_initialized()
_THREADS = ("jemalloc_bg_thd",)  # ended before a fork and started again behind it by its library
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP, _SIGKILL = 1, 35, 14, 9
_ONLY_AST = 0x400  # compile's flag


class _Refusal(Exception):
    """Why what was imported cannot be shared, and what to try."""

    def __init__(self, reason, hint=""):
        Exception.__init__(self, reason)
        self.hint, self.step = hint, ""


class _Connection:
    def __init__(self, socket):
        self.socket = socket

    def send(self, *fields):
        out = []
        for field in fields:
            if isinstance(field, str):
                field = os.fsencode(field)
            out.append(len(field).to_bytes(4, "little") + field)
        body = b"".join(out)
        self.socket.sendall(len(body).to_bytes(4, "little") + body)

    def receive(self):
        """Returns the next message as [(key, value), ...] and the descriptors that came with it; None at the end."""
        head, fds = b"", []
        while len(head) < 4:
            part, extra, _, _ = self.socket.recvmsg(4 - len(head), 4096)
            for _, _, data in extra:
                fds += [int.from_bytes(data[i:i + 4], sys.byteorder) for i in range(0, len(data), 4)]
            if not part:
                return None, fds
            head += part
        body = bytearray()
        size = int.from_bytes(head, "little")
        while len(body) < size:
            part = self.socket.recv(min(size - len(body), 1 << 20))
            if not part:
                return None, fds
            body += part
        body, fields, at = bytes(body), [], 0
        while at < size:
            end = at + 4 + int.from_bytes(body[at:at + 4], "little")
            fields.append(body[at + 4:end])
            at = end
        return [(key.decode(), value) for key, value in zip(fields[::2], fields[1::2])], fds


def _high(fd):
    """Moves a descriptor out of the way: what modules open is to get the numbers it gets in any process."""
    top = min(os.sysconf("SC_OPEN_MAX"), 1024) - 1
    while True:
        try:
            os.fstat(top)
            top -= 1
        except OSError:
            os.dup2(fd, top, inheritable=False)
            os.close(fd)
            return top


def _borrow(name):
    """Imports a module of Python's for ourselves alone: the script shall find it as unknown as it was."""
    known = set(sys.modules)
    module = __import__(name)
    for new in set(sys.modules) - known:
        del sys.modules[new]
    return module


# What this process looks like from outside.

def _listing(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def _descriptors():
    found = {}
    for name in _listing("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # the directory's own
    return found


def _read(path):
    try:
        with open(path, "rb", 0) as f:
            return b"".join(iter(lambda: f.read(1 << 16), b""))
    except OSError:
        return b""


def _threads():
    """Returns the names of the threads beside this one, less the harmless ones."""
    found = []
    for tid in _listing("/proc/self/task"):
        name = _read("/proc/self/task/%s/comm" % tid).decode("utf-8", "replace").strip()
        if int(tid) != os.getpid() and name and name not in _THREADS:
            found.append(name)
    return found


def _children():
    """Returns the names of the children that run."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for pid in _listing("/proc"):
        if pid.isdigit():
            stat = _read("/proc/%s/stat" % pid)
            fields = stat[stat.rfind(b")") + 1:].split()
            if len(fields) > 1 and int(fields[1]) == os.getpid() and fields[0] not in (b"Z", b"X"):
                found.append(stat[stat.find(b"(") + 1:stat.rfind(b")")].decode("utf-8", "replace") + " (%s)" % pid)
    return found


def _patiently(look):
    """Looks again for a fifth of a second: what is about to end may."""
    import time  # known to every interpreter at this point
    for _ in range(10):
        found = look()
        if not found:
            break
        time.sleep(0.02)
    return found


class _Watch(type(os.environ)):
    """os.environ while modules are imported: it notes who asks for what differs between workers."""

    def __getitem__(self, key):
        name = key if isinstance(key, str) else os.fsdecode(key) if isinstance(key, bytes) else ""
        if name in _Watch.names:
            frame = sys._getframe(1)
            while frame and os.path.basename(frame.f_code.co_filename).rstrip(">") in ("os.py", "_collections_abc.py", "<frozen os", "<frozen _collections_abc"):
                frame = frame.f_back
            where = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno) if frame else "?"
            _Watch.seen.append((name, where))
        return super().__getitem__(key)

    names = frozenset()
    seen = []


class _State:
    """What must be the same after the imports as before."""

    def __init__(self):
        self.pid = os.getpid()
        self.cwd = os.getcwd()
        self.descriptors = _descriptors()
        self.shared = self.mappings(_read("/proc/self/maps"))

    @staticmethod
    def mappings(maps):
        """Returns the files and shared memory that are mapped so that others see what is written."""
        return {line.split(None, 5)[-1] for line in maps.splitlines() if b" rw-s " in line}

    def check(self):
        """Raises _Refusal where what has been imported so far cannot be shared."""
        for name, where in _Watch.seen:
            raise _Refusal("reads %s (%s), which each worker has another value of" % (name, where))
        cwd = os.getcwd()
        if cwd != self.cwd:
            raise _Refusal("changes the working directory to %s" % cwd)
        maps = _read("/proc/self/maps")
        self.check_devices(maps)
        self.check_threads()
        children = _patiently(_children)
        if children:
            raise _Refusal("starts a process that goes on running: %s" % ", ".join(children))
        signal = sys.modules["_signal"]
        if any(signal.getitimer(which)[0] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
            raise _Refusal("starts a timer")
        for fd, target in sorted(_descriptors().items()):
            if fd not in self.descriptors and target not in _SHARABLE:
                raise _Refusal("leaves descriptor %d open (%s)" % (fd, target))
        shared = self.mappings(maps) - self.shared
        if shared:
            raise _Refusal("maps shared memory (%s)" % os.fsdecode(sorted(shared)[0]))

    def check_devices(self, maps):
        for target in _descriptors().values():
            if target.startswith(_DEVICES):
                raise _Refusal("initialises a device runtime (%s is open)" % target)
        hint = "set PYTORCH_NVML_BASED_CUDA_CHECK=1, so that asking for GPUs does not initialise CUDA"
        if b"libcuda.so" in maps:
            libc = _borrow("_ctypes")
            try:  # RTLD_NOLOAD: only where it is loaded. The call does nothing; 3 is CUDA_ERROR_NOT_INITIALIZED.
                call = libc.dlsym(libc.dlopen("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_LAZY), "cuCtxSynchronize")
                if libc.call_function(call, ()) != 3:
                    raise _Refusal("initialises CUDA", hint)
            except OSError:
                pass
        torch = sys.modules.get("torch")
        for name in _BACKENDS:
            backend = getattr(torch, "__dict__", {}).get(name)
            initialized = getattr(backend, "__dict__", {}).get("is_initialized")
            if callable(initialized) and initialized():
                raise _Refusal("initialises torch.%s" % name, hint if name == "cuda" else "")
        mpi = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
        if mpi and mpi():
            raise _Refusal("initialises MPI", "set mpi4py.rc.initialize = False")

    def check_threads(self):
        if not _threads():
            return
        threading = sys.modules.get("threading")
        alive = _patiently(lambda: [t.name for t in threading.enumerate() if t is not threading.main_thread()]) if threading else []
        if alive:
            raise _Refusal("starts threads: %s" % ", ".join(alive))
        # A library that can live with forks ends its threads before one, as OpenBLAS does. A trial tells.
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        left = _patiently(_threads)
        if left:
            raise _Refusal("starts %d threads (%s) that do not end before a fork" % (len(left), ", ".join(sorted(set(left)))))


# What is to be imported.

class _Step:
    """One import. label names it for people; soft: a failure is the script's own business, in a try of its."""

    def __init__(self, label, run, soft=False):
        self.label, self.run, self.soft = label, run, soft


def _installed(name):
    """Reports whether the top-level module of that name is Python's own or was installed."""
    if name in sys.builtin_module_names:
        return True
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find else None
        if spec is None:
            continue
        if spec.origin in ("built-in", "frozen"):
            return True
        places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
        return all(os.path.realpath(place).startswith(_homes()) for place in places)
    return False


def _homes():
    """Returns where installed modules are: the standard library, site-packages, dist-packages."""
    site = sys.modules["site"]
    found = {os.path.dirname(os.__file__)}
    found.update(p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages", "lib-dynload"))
    if hasattr(site, "getsitepackages"):
        found.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    return tuple(os.path.realpath(p) + os.sep for p in found)


def _kind(node):
    return type(node).__name__


def _type_checking(node):
    test = node.test
    return _kind(test) == "Name" and test.id == "TYPE_CHECKING" or _kind(test) == "Attribute" and test.attr == "TYPE_CHECKING"


def _constant(node):
    return _kind(node) in ("Constant", "Num", "Str") or _kind(node) in ("Tuple", "List") and all(map(_constant, node.elts))


def _prefix(path, main):
    """Returns the imports that a file begins with, as steps, and whether it holds nothing else.

    What ends them is the first statement that could change what an import does, such as os.environ[...] = ..., and the
    first import of a module that was not installed: the project's own code is not run here.
    """
    with open(path, "rb") as f:
        source = f.read()
    if main and sys.version_info >= (3, 9):
        path = os.path.abspath(path)  # as in tracebacks and warnings
    tree = compile(source, path, "exec", _ONLY_AST, dont_inherit=True)
    lines = source.decode("utf-8", "replace").splitlines()
    body, steps, namespace = tree.body, [], {"__name__": "__main__" if main else "", "__file__": path}

    def importing(node, soft):
        tops = {alias.name.split(".")[0] for alias in node.names}
        if _kind(node) == "ImportFrom":
            if node.level:
                return False
            tops = {node.module.split(".")[0]}
        if tops == {"__future__"}:
            return True
        if not all(map(_installed, tops)):
            return False
        tree.body = [node]
        code = compile(tree, path, "exec", dont_inherit=True)
        label = " ".join(part.strip() for part in lines[node.lineno - 1:(getattr(node, "end_lineno", 0) or node.lineno)])
        steps.append(_Step(label, lambda: exec(code, namespace), soft))
        return True

    for node in body:
        kind = _kind(node)
        if kind in ("Import", "ImportFrom"):
            if not importing(node, False):
                return steps, False
        elif kind == "Try" and all(_kind(n) in ("Import", "ImportFrom") for n in node.body) and not node.orelse and not node.finalbody:
            for inner in node.body:
                if not importing(inner, True):
                    return steps, False
        elif kind == "Expr" and _constant(node.value) or kind == "If" and _type_checking(node) and not node.orelse:
            pass
        elif kind == "Assign" and _constant(node.value) and all(_kind(t) == "Name" for t in node.targets):
            pass
        else:
            return steps, False
    return steps, True


def _sources(form, name, origin):
    """Returns what runs first: modules to import, and then files, in order."""
    if form in ("script", "run_path"):
        return [], [os.path.join(name, "__main__.py") if os.path.isdir(name) else name]
    if form != "module":
        return [], []
    finder = next(f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder")
    files, places, parts = [], [origin] + sys.path, name.split(".")
    for i in range(len(parts)):
        spec = finder.find_spec(".".join(parts[:i + 1]), places)
        if spec is None or not (spec.origin or "").endswith(".py"):
            return [], files
        files.append(spec.origin)
        places = spec.submodule_search_locations
    if places:
        files += [main for main in (os.path.join(p, "__main__.py") for p in places) if os.path.exists(main)][:1]
    if len(files) > 1 and _installed(parts[0]):  # an installed package is imported as a whole
        return [name if places else ".".join(parts[:-1])], files[-1:]
    return [], files


class _Imports:
    """What the template imports, and whether it still is what a worker would."""

    def __init__(self, order):
        text = {key: [os.fsdecode(v) for v in order[key]] for key in order if key != "env"}
        self.modules = text.get("module", [])
        self.auto = not self.modules
        self.form, self.name = text["form"][0], text["name"][0]
        self.limit = int(text["limit"][0])
        self.files = {}
        if self.form == "script":
            real = os.path.realpath(self.name)
            self.origin = real if os.path.isdir(real) else os.path.dirname(real)
        else:
            self.origin = os.getcwd()
        self.hides = not getattr(sys.flags, "safe_path", False)

    def steps(self):
        modules, files = (self.modules, []) if not self.auto else _sources(self.form, self.name, self.origin)
        steps = [_Step("import " + m, lambda m=m: __import__(m)) for m in modules]
        for path in files:
            try:
                more, whole = _prefix(path, path == files[-1])
            except (OSError, SyntaxError, ValueError):
                break  # the worker will say so
            steps += more
            if not whole:
                break
        return steps

    def hidden(self):
        """Raises _Refusal where a module was imported that the worker would find beside its script instead."""
        if not self.auto or not self.hides:
            return
        names = {n.split(".")[0] for n in _listing(self.origin) if n.endswith((".py", ".so")) or os.path.isfile(os.path.join(self.origin, n, "__init__.py"))}
        for name in sorted(names & (set(sys.modules) - self.before)):
            path = getattr(sys.modules[name], "__dict__", {}).get("__file__") or ""
            if not os.path.realpath(path).startswith(self.origin + os.sep):
                raise _Refusal("finds the installed module %s where the script finds %s in %s" % (name, name, self.origin))

    def stamp(self):
        """Returns what tells whether the files of the imported modules are as they were."""
        found = {}
        for module in list(sys.modules.values()):
            if module is sys.modules["__main__"]:
                continue
            path = getattr(module, "__dict__", {}).get("__file__") if isinstance(module, type(sys)) else None
            if isinstance(path, str):
                try:
                    st = os.stat(path)
                except OSError:
                    continue  # in an archive
                found[path] = (st.st_mtime_ns, st.st_size, st.st_ino)
        return found

    def run(self, state, tell):
        self.before = set(sys.modules)
        if not self.auto and self.hides:
            sys.path.insert(0, self.origin)
        done, steps = 0, self.steps()
        self.labels = [step.label for step in steps]
        try:
            for step in steps[:self.limit]:
                tell("importing", step.label)
                stop = self.step(step, state, tell)
                done += 1
                if stop:
                    break
        except _Refusal as e:
            e.step = str(done)
            raise
        finally:
            if not self.auto and self.hides and self.origin in sys.path:
                sys.path.remove(self.origin)
        self.hidden()
        self.files = self.stamp()
        return done

    def step(self, step, state, tell):
        """Imports, and returns whether that was the last one."""
        failure = None
        try:
            step.run()
        except ImportError as e:
            if not step.soft:
                failure = _Refusal("fails: %s: %s" % (type(e).__name__, e))
        except SystemExit as e:
            failure = _Refusal("calls sys.exit(%s)" % ("" if e.code is None else repr(e.code)))
        except BaseException as e:
            failure = _Refusal("fails: %s: %s" % (type(e).__name__, e))
        else:
            step.soft = False
        if os.getpid() != state.pid:  # a child that the module forked, and that would go on with the script
            tell("refused", "forks, and lets both processes go on", "", str(self.labels.index(step.label)))
            os._exit(0)
        _flush()
        if failure:
            raise failure
        state.check()
        return step.soft

    def changed(self):
        """Returns what is not as it was when it was imported, "" for nothing."""
        now = self.stamp()
        for path in self.files:
            if now.get(path) != self.files[path]:
                return path
        if self.auto and [step.label for step in self.steps()] != self.labels:
            return self.name
        try:
            self.hidden()
        except _Refusal as e:
            return str(e)
        return ""


# The worker.

def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # replaced by a module, or closed


class _Template:
    def __init__(self, connection, order):
        self.connection = connection
        self.agent = int(order["agent"][0])
        self.arguments = int(order["arguments"][0])
        self.comm = _read("/proc/self/comm").strip()
        given = dict(entry.partition(b"=")[::2] for entry in order.get("env", []))
        now = dict(os.environb)
        # What Python, or a wrapper around it, makes of its environment: LC_CTYPE in the C locale, for example.
        self.set = {k: v for k, v in now.items() if given.get(k) != v}
        self.unset = [k for k in given if k not in now]

    def serve(self):
        """Answers until it returns in a worker."""
        while True:
            message, fds = self.connection.receive()
            if message is None:
                os._exit(0)
            if message[0][0] == "check":
                self.connection.send("checked", self.imports.changed())
            elif self.fork(message, fds):
                return

    def fork(self, message, fds):
        """Forks workers and returns True in each. Their parent shall be the launcher: a middleman forks them and ends,
        and orphans go to the launcher. Each has four descriptors: its standard ones and a connection."""
        workers = []
        for key, value in message:
            if key == "worker":
                workers.append({"argv": [], "env": []})
            elif workers:
                workers[-1][key].append(value)
        fds = [fds[i:i + 4] for i in range(0, len(fds), 4)]
        middle = -1
        try:
            middle = os.fork()
        except OSError as e:
            self.failed(fds, e)
        if not middle:
            return self.middleman(workers, fds)
        for fd in sum(fds, []):
            os.close(fd)
        if middle > 0:
            os.waitpid(middle, 0)
        return False

    def failed(self, fds, error):
        for own in fds:
            connection = _Connection(self.socket(fileno=os.dup(own[3])))
            connection.send("failed", "cannot fork: %s" % error.strerror)
            connection.socket.close()

    def middleman(self, workers, fds):
        me = os.getpid()
        ended, end = os.pipe()
        for i, worker in enumerate(workers):
            try:
                pid = os.fork()
            except OSError as e:
                self.failed(fds[i:], e)
                break
            if not pid:
                os.close(end)
                for other in fds[:i] + fds[i + 1:]:
                    for fd in other:
                        os.close(fd)
                return self.worker(worker, fds[i], me, ended)
        os._exit(0)

    def worker(self, worker, fds, middle, ended):
        """Makes this process what it would be if the launcher had started it, and waits for its word."""
        connection = _Connection(self.socket(fileno=_high(fds[3])))
        try:
            self.become(worker, fds[:3])
            self.belong(middle, ended)
            connection.send("pid", str(os.getpid()))
            answer, _ = connection.receive()
            if answer is None:
                os._exit(1)
            for key, piece in answer:
                while key == "output" and len(piece) > 1:
                    piece = piece[:1] + piece[1 + os.write(int(piece[:1]), piece[1:]):]
        except BaseException as e:
            try:
                connection.send("failed", "%s: %s" % (type(e).__name__, e))
            finally:
                os._exit(1)
        connection.socket.close()
        return True

    def belong(self, middle, ended):
        """Waits until the launcher is the parent, and ties this process to it."""
        os.read(ended, 1)  # the middleman is ending
        os.close(ended)
        while os.getppid() == middle:
            os.sched_yield()
        # Only now: the signal is sent when the parent ends, and that was the middleman.
        self.ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != self.agent:
            os._exit(1)

    def become(self, worker, fds):
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
        self.connection.socket.close()
        with open("/proc/self/comm", "wb", 0) as f:
            f.write(self.comm)
        self.argue([os.fsdecode(a) for a in worker["argv"]])
        self.look(worker["argv"], worker["env"])
        self.environ(worker["env"])
        self.seed()
        out = sys.__stdout__
        if type(out).__name__ == "TextIOWrapper" and out.fileno() == 1 and os.isatty(1) and not out.line_buffering:
            out.reconfigure(line_buffering=True)

    def argue(self, argv):
        own = argv[len(argv) - self.arguments:]
        sys.argv[len(sys.argv) - self.arguments:] = own
        original = getattr(sys, "orig_argv", None)
        if original:
            original[len(original) - self.arguments:] = own

    def environ(self, entries):
        wanted = dict(entry.partition(b"=")[::2] for entry in entries)
        wanted.update(self.set)
        for name in self.unset:
            wanted.pop(name, None)
        environ = os.environb
        for name in list(environ):
            del environ[name]
        for name, value in wanted.items():
            environ[name] = value

    def look(self, argv, env):
        """Corrects what others read of this process: /proc/PID/cmdline and /proc/PID/environ. A kernel without it is
        left as it is."""
        ctypes = self.ctypes
        libc = ctypes.CDLL(None)
        stat = _read("/proc/self/stat")
        fields = stat[stat.rfind(b")") + 2:].split()
        field = lambda n: int(fields[n - 3])  # numbered as in proc(5)
        shown = _read("/proc/self/cmdline").split(b"\0")[:-1]
        shown[len(shown) - self.arguments:] = argv[len(argv) - self.arguments:]
        first = b"".join(a + b"\0" for a in shown)
        second = b"".join(e + b"\0" for e in env)
        libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        size = len(first) + len(second)
        at = libc.mmap(None, size, 3, 0x22, -1, 0)  # private, anonymous, to be read and written; never given back
        if at in (None, ctypes.c_void_p(-1).value):
            return
        ctypes.memmove(at, first + second, size)
        numbers = [field(26), field(27), field(45), field(46), field(47), libc.sbrk(ctypes.c_ssize_t(0)), field(28),
                   at, at + len(first), at + len(first), at + size]
        struct = (ctypes.c_uint64 * 13)(*numbers, 0, 0xffffffff << 32)  # no auxiliary vector, no new executable
        libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(struct), ctypes.c_ulong(ctypes.sizeof(struct)), 0)

    def seed(self):
        """Gives numpy and torch random states of their own; Python's random did that when it was forked."""
        numpy = sys.modules.get("numpy.random")
        if numpy:
            numpy.seed()
        torch = sys.modules.get("torch")
        if torch:
            torch.default_generator.seed()


def _wait():
    """Is the template: returns in workers only."""
    directory = os.path.dirname(os.path.abspath(__file__))
    _socket = _borrow("_socket")
    connection = _Connection(_socket.socket(fileno=_high(int(os.environ.pop("MUSTER_TEMPLATE")))))

    path = [p for p in os.environ["PYTHONPATH"].split(os.pathsep) if p != directory]
    if path:
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    else:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [p for p in sys.path if p != directory]
    sys.path_importer_cache.pop(directory, None)

    connection.send("hello", str(os.getpid()), sys.implementation.name, "%d.%d" % sys.version_info[:2])
    message, _ = connection.receive()
    if message is None or message[0][0] == "probe":
        os._exit(0)
    order = {}
    for key, value in message:
        order.setdefault(key, []).append(value)
    if b"PYTHONPATH=" in order.get("env", []):
        os.environ["PYTHONPATH"] = ""
    template = _Template(connection, order)
    template.socket = _socket.socket
    state = _State()
    with open("/proc/self/comm", "wb", 0) as f:
        f.write(b"muster-template")

    # What Python's start-up would have imported instead of this file, and what it imports after it.
    site = sys.modules["site"]
    del sys.modules[_NOT_OURS]
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()

    template.imports = imports = _Imports(order)
    _Watch.names = frozenset(os.fsdecode(name) for name in order.get("varying", []))

    main, argv = sys.modules["__main__"], list(sys.argv)
    if imports.form == "script":
        main.__file__ = os.path.abspath(imports.name) if sys.version_info >= (3, 9) else imports.name
    ordinary = type(os.environ)
    os.environ.__class__ = os.environb.__class__ = _Watch
    try:
        done = imports.run(state, connection.send)
    except _Refusal as e:
        connection.send("refused", str(e), e.hint, e.step)
        os._exit(0)
    finally:
        os.environ.__class__ = os.environb.__class__ = ordinary
    main.__dict__.pop("__file__", None)
    sys.argv[:] = argv
    template.ctypes = sys.modules.get("ctypes") or _borrow("ctypes")
    (sys.modules.get("gc") or _borrow("gc")).freeze()  # so that a collection in a worker does not touch, and copy, all of it
    _flush()
    for fd in (1, 2):
        os.write(fd, order["end"][0])  # all that was printed stands before it
    connection.send("ready", str(done))
    template.serve()


if "MUSTER_TEMPLATE" in os.environ:
    _pid = os.getpid()
    try:
        _wait()
    except BaseException as _error:
        # Never on to the script: not in the template, and not in a worker that is half made.
        try:
            os.write(2, ("muster's template failed: %s: %s\n" % (type(_error).__name__, _error)).encode())
        finally:
            os._exit(70)
    if _NOT_OURS not in sys.modules:
        raise ImportError("no module of this name", name=_NOT_OURS)  # as if there had never been one

"""What must hold of a process so that forks of it are as good as processes that started by themselves."""
import os
import sys

SHARABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
STACKS = "/memfd:muster-stacks-"  # where Python writes its stacks when muster asks; each fork makes its own
# Device nodes that are open only where a device runtime was initialised. NVML opens /dev/nvidiactl and is no runtime.
DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/davinci", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/hl", "/dev/accel/",
           "/dev/dri/render", "/dev/mxcd", "/dev/cambricon", "/dev/mtgpu", "/dev/infiniband/")
BACKENDS = ("cuda", "xpu", "npu", "musa", "mlu", "hpu", "sdaa", "gcu")  # of torch, as torch.<name>.is_initialized()
WALKERS = ("/tqdm/utils.py",)  # go through all variables for some that are no concern of ours
PR_SET_CHILD_SUBREAPER = 36
THREADS = ("jemalloc_bg_thd",)  # ended before a fork and started again behind it by its library


def borrow(name):
    """Imports a module of Python's for ourselves alone: the script shall find it as unknown, or as known, as it was."""
    known, places = set(sys.modules), set(sys.path_importer_cache)
    module = __import__(name)
    for new in set(sys.modules) - known:
        del sys.modules[new]
    for new in set(sys.path_importer_cache) - places:
        del sys.path_importer_cache[new]
    return module


class Refusal(Exception):
    """Why what was imported cannot be shared, and what to try."""

    def __init__(self, reason, hint=""):
        Exception.__init__(self, reason)
        self.hint, self.step = hint, ""


def listing(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def descriptors():
    found = {}
    for name in listing("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # the directory's own
    return found


def read(path):
    try:
        with open(path, "rb", 0) as f:
            return b"".join(iter(lambda: f.read(1 << 16), b""))
    except OSError:
        return b""


def threads():
    """Returns the names of the threads beside this one, less the harmless ones."""
    found = []
    for tid in listing("/proc/self/task"):
        name = read("/proc/self/task/%s/comm" % tid).decode("utf-8", "replace").strip()
        if int(tid) != os.getpid() and name and name not in THREADS:
            found.append(name)
    return found


def children():
    """Returns the names of the children that run."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for pid in listing("/proc"):
        if pid.isdigit():
            stat = read("/proc/%s/stat" % pid)
            fields = stat[stat.rfind(b")") + 1:].split()
            if len(fields) > 1 and int(fields[1]) == os.getpid() and fields[0] not in (b"Z", b"X"):
                found.append(stat[stat.find(b"(") + 1:stat.rfind(b")")].decode("utf-8", "replace") + " (%s)" % pid)
    return found


def patiently(look):
    """Looks again for a fifth of a second: what is about to end may."""
    import time  # known to every interpreter at this point
    for _ in range(10):
        found = look()
        if not found:
            break
        time.sleep(0.02)
    return found


class Watch:
    """While it is entered, os.environ notes who asks for what differs between workers, or goes through all of it: what
    differs is not there."""

    seen = []
    now = None  # the one that is entered

    def __init__(self, names):
        self.names = frozenset(map(os.fsdecode, names))
        self.ordinary = type(os.environ)

    def __enter__(self):
        watch = Watch.now = self

        class Environ(self.ordinary):
            def __getitem__(self, key):
                if (os.fsdecode(key) if isinstance(key, bytes) else key) in watch.names:
                    Watch.seen.append((key, asker(sys._getframe(1))))
                return super().__getitem__(key)

            def __iter__(self):
                place = asker(sys._getframe(1))
                # Python's own modules copy it for the children they start.
                if not place.startswith(os.path.dirname(os.__file__)) or "-packages/" in place:
                    if not place.rpartition(":")[0].endswith(WALKERS):
                        Watch.seen.append(("all variables", place))
                return super().__iter__()

        os.environ.__class__ = os.environb.__class__ = Environ

    def __exit__(self, *_):
        os.environ.__class__ = os.environb.__class__ = self.ordinary

    @staticmethod
    def check():
        for name, where in Watch.seen:
            raise Refusal("reads %s (%s), and the workers' differ" % (os.fsdecode(name), where))


def end_tracker():
    """Has Python's resource tracker clean up before this process ends: it would be killed with it."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    stop = getattr(tracker, "_stop", None)
    if stop:
        stop()


class NoCollections:
    """While it is entered nothing is collected: that takes a sixth of the time of importing PyTorch, and finds nothing. What
    has been made is frozen, so that a collection in a worker does not touch, and thereby copy, all that was imported."""

    def __enter__(self):
        self.gc = borrow("gc")
        self.threshold = self.gc.get_threshold()
        self.gc.set_threshold(0)
        return self.gc

    def __exit__(self, *_):
        self.gc.freeze()
        if self.gc.get_threshold()[0] == 0:  # else a module chose another one
            self.gc.set_threshold(*self.threshold)


def asker(frame):
    """Returns the place in a file that asked os.environ."""
    while frame and frame.f_code.co_filename.rstrip(">").rsplit("/", 1)[-1] in ("os.py", "_collections_abc.py", "<frozen os", "<frozen _collections_abc"):
        frame = frame.f_back
    return "%s:%d" % (frame.f_code.co_filename, frame.f_lineno) if frame else "?"


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # replaced by a module, or closed


def traced():
    """Reports whether a tool watches every line: it would watch the template, and miss the workers."""
    monitoring = getattr(sys, "monitoring", None)
    return sys.gettrace() or sys.getprofile() or monitoring and any(map(monitoring.get_tool, range(6)))


class State:
    """What must be the same after the imports as before. While it is entered, orphans of children come to this process, so
    that daemons are seen, and temporary directories are noted."""

    def __init__(self):
        self.directories = []
        self.pid = os.getpid()
        self.cwd = os.getcwd()
        self.descriptors = descriptors()
        self.shared = self.mappings(read("/proc/self/maps"))

    @staticmethod
    def mappings(maps):
        """Returns the files and shared memory that are mapped so that others see what is written."""
        return {line.split(None, 5)[-1] for line in maps.splitlines() if b" rw-s " in line}

    def reap(self, on):
        libc = borrow("_ctypes")
        libc.call_function(libc.dlsym(libc.dlopen(None, os.RTLD_LAZY), "prctl"), (PR_SET_CHILD_SUBREAPER, on, 0, 0, 0))

    def __enter__(self):
        self.reap(1)
        self.mkdir = mkdir = os.mkdir

        def noting(path, *args, **kwargs):
            if sys._getframe(1).f_code.co_filename.endswith("/tempfile.py"):
                self.directories.append(path)
            return mkdir(path, *args, **kwargs)

        os.mkdir = noting

    def __exit__(self, *_):
        os.mkdir = self.mkdir
        self.reap(0)

    def check(self):
        """Raises Refusal where what has been imported so far cannot be shared."""
        cwd = os.getcwd()
        if cwd != self.cwd:
            raise Refusal("changes the working directory to %s" % cwd)
        maps = read("/proc/self/maps")
        self.check_devices(maps)
        self.check_threads()
        running = patiently(children)
        if running:
            raise Refusal("starts a process that goes on running: %s" % ", ".join(running))
        signal = sys.modules["_signal"]
        if any(signal.getitimer(which)[0] for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
            raise Refusal("starts a timer")
        now = descriptors()
        for fd, target in sorted(self.descriptors.items()):
            if now.get(fd) != target:
                raise Refusal("changes descriptor %d (%s)" % (fd, now.get(fd, "closed")))
        for fd, target in sorted(now.items()):
            if fd not in self.descriptors and target not in SHARABLE and not target.startswith(STACKS):
                raise Refusal("leaves descriptor %d open (%s)" % (fd, target))
        for path in self.directories:
            if os.path.isdir(path):
                raise Refusal("makes the temporary directory %s" % path)
        shared = self.mappings(maps) - self.shared
        if shared:
            raise Refusal("maps shared memory (%s)" % os.fsdecode(sorted(shared)[0]))

    def check_devices(self, maps):
        for target in descriptors().values():
            if target.startswith(DEVICES):
                raise Refusal("initialises a device runtime (%s is open)" % target)
        hint = "set PYTORCH_NVML_BASED_CUDA_CHECK=1, so that asking for GPUs does not initialise CUDA"
        if b"libcuda.so" in maps:
            libc = borrow("_ctypes")
            try:  # RTLD_NOLOAD: only where it is loaded. The call does nothing; 3 is CUDA_ERROR_NOT_INITIALIZED.
                call = libc.dlsym(libc.dlopen("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_LAZY), "cuCtxSynchronize")
                if libc.call_function(call, ()) != 3:
                    raise Refusal("initialises CUDA", hint)
            except OSError:
                pass
        torch = sys.modules.get("torch")
        for name in BACKENDS:
            backend = getattr(torch, "__dict__", {}).get(name)
            initialized = getattr(backend, "__dict__", {}).get("is_initialized")
            if callable(initialized) and initialized():
                raise Refusal("initialises torch.%s" % name, hint if name == "cuda" else "")
        mpi = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
        if mpi and mpi():
            raise Refusal("initialises MPI", "set mpi4py.rc.initialize = False")

    def check_threads(self):
        if not threads():
            return
        threading = sys.modules.get("threading")
        alive = patiently(lambda: [t.name for t in threading.enumerate() if t is not threading.main_thread()]) if threading else []
        if alive:
            raise Refusal("starts threads: %s" % ", ".join(alive))
        # A library that can live with forks ends its threads before one, as OpenBLAS does. A trial tells.
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        left = patiently(threads)
        if left:
            raise Refusal("starts %d threads (%s) that do not end before a fork" % (len(left), ", ".join(sorted(set(left)))))

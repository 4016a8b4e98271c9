"""How a template forks workers, and how a fork becomes one."""
import os
import sys

from muster_checks import borrow, read

OOM = "/proc/self/oom_score_adj"
TEMPLATE = b"muster-template"  # what the kernel calls the template, and spares
PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP, SIGKILL = 1, 35, 14, 9


class Template:
    def __init__(self, connection, connect, order, comm, learn):
        """connect makes a connection of a descriptor; comm is what the kernel calls this process without us; learn is the
        module muster_learn."""
        self.learn = learn
        self.connection, self.connect, self.comm = connection, connect, comm
        self.agent = int(order["agent"][0])
        self.arguments = int(order["arguments"][0])
        self.program = []  # that a fork runs instead of the worker's: its script and arguments
        self.notes = [] if "learn" in order else None  # of each worker to be; None: nobody asks for them
        self.mine = None  # of this worker
        self.given = dict(entry.partition(b"=")[::2] for entry in order.get("env", []))
        self.yielding = self.volunteer()

    @staticmethod
    def volunteer():
        """Has the OOM killer take the template and its spares before anybody else, where a worker can take that back; returns
        what it is to write then, nothing where it has nothing to undo."""
        before = read(OOM)
        try:
            for value in (b"1000", before, b"1000"):
                with open(OOM, "wb", 0) as f:
                    f.write(value)
        except OSError as e:
            if read(OOM) != before:
                raise RuntimeError("the OOM killer's score cannot be lowered again: %s" % e)
            return b""
        return before

    def serve(self, imports, gc):
        """Answers until it returns in a worker."""
        self.ctypes, self.gc = borrow("ctypes"), gc
        self.atexit = borrow("atexit")
        # Python 3.9 calls it at the end, and does not own it.
        self.ctypes.pythonapi.Py_IncRef(self.ctypes.py_object(self.atexit))
        if read("/proc/self/comm").strip() != TEMPLATE:  # a module gave the process another name
            self.comm = read("/proc/self/comm").strip()
        # What Python (LC_CTYPE in the C locale), a wrapper around it and what was imported made of the environment.
        now = dict(os.environb)
        self.set = {name: value for name, value in now.items() if self.given.get(name) != value}
        self.unset = [name for name in self.given if name not in now]
        self.connection.send("ready", str(imports.done), str(imports.modules_made), imports.end, str(imports.late_ones))
        while True:
            message, fds = self.connection.receive()
            if message is None:
                os._exit(0)
            if message[0][0] == "check":
                self.connection.send("checked", imports.changed())
            elif message[0][0] == "noted":
                self.connection.send("noted", "", *self.learn.answer(self.notes or [], {int(pid) for key, pid in message if key == "pid"}))
            elif self.fork(fds):
                return

    def fork(self, fds):
        """Forks workers to be, one for each descriptor, and returns True in each when it is to be one. Their parent shall
        be the launcher: a middleman forks them and ends, and orphans go to the launcher."""
        middle, books = -1, [self.learn.Notes() for _ in fds] if self.notes is not None else []
        try:
            middle = os.fork()
        except OSError as e:
            self.failed(fds, e)
        if not middle:
            return self.middleman(fds, books)
        for fd in fds:
            os.close(fd)
        if books:
            self.notes = [book for book in self.notes if book.wanted()] + books
        if middle > 0:
            os.waitpid(middle, 0)
        return False

    def failed(self, fds, error):
        for fd in fds:
            connection = self.connect(os.dup(fd))
            connection.send("failed", "cannot fork: %s" % error.strerror)
            connection.socket.close()

    def middleman(self, fds, books):
        me = os.getpid()
        ended, end = os.pipe()
        for i, own in enumerate(fds):
            try:
                pid = os.fork()
            except OSError as e:
                self.failed(fds[i:], e)
                break
            if not pid:
                os.close(end)
                for other in fds[:i] + fds[i + 1:]:
                    os.close(other)
                self.notes, self.mine = None, books[i] if books else None  # the others' memory is let go
                del books
                return self.wait(self.connect(own), me, ended)
        os._exit(0)

    def wait(self, connection, middle, ended):
        """Is a spare until the launcher has a worker for it to be, and then waits for its last word."""
        try:
            os.setsid()
            self.connection.socket.close()
            self.belong(middle, ended)
            connection.send("pid", str(os.getpid()))
            order, fds = connection.receive()
            if order is None:
                os._exit(0)
            self.bind({int(value) for key, value in order if key == "cpu"})
            self.program = [os.fsdecode(value) for key, value in order if key == "program"]
            self.become([value for key, value in order if key == "argv"], [value for key, value in order if key == "env"], fds)
            connection.send("ready")
            answer, _ = connection.receive()
            if answer is None:
                os._exit(70)
            for key, piece in answer:
                while key == "output" and len(piece) > 1:
                    piece = piece[:1] + piece[1 + os.write(int(piece[:1]), piece[1:]):]
        except BaseException as e:
            try:
                connection.send("failed", "%s: %s" % (type(e).__name__, e))
            finally:
                os._exit(1)
        connection.socket.close()
        if self.mine and not self.program:
            self.mine.install()
        return True

    def belong(self, middle, ended):
        """Waits until the launcher is the parent, and ties this process to it."""
        os.read(ended, 1)  # the middleman is ending
        os.close(ended)
        while os.getppid() == middle:
            os.sched_yield()
        # Only now: the signal is sent when the parent ends, and that was the middleman.
        self.ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        if os.getppid() != self.agent:
            os._exit(1)

    def bind(self, cpus):
        """Binds this process to CPUs, if there are any, and the threads that a module has started again in it."""
        for thread in os.listdir("/proc/self/task") if cpus else ():
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:
                pass  # it has ended

    def become(self, argv, env, fds):
        """Makes this process what it would be if the launcher had started it."""
        for number, fd in enumerate(fds):  # each is above the number it gets
            if number > 2 and os.path.lexists("/proc/self/fd/%d" % number):
                raise RuntimeError("descriptor %d is open" % number)
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
        with open("/proc/self/comm", "wb", 0) as f:
            f.write(self.comm)
        self.argue([os.fsdecode(a) for a in argv])
        shown = read("/proc/self/cmdline").split(b"\0")[:-1]
        if self.program:
            shown = argv
        else:
            shown[len(shown) - self.arguments:] = argv[len(argv) - self.arguments:]
        self.look(shown, env)
        self.environ(env)
        if self.yielding:
            with open(OOM, "wb", 0) as f:
                f.write(self.yielding)
        self.renew()
        # What was frozen would not be collected at the end either, and some modules count what is left then.
        self.atexit.register(self.gc.unfreeze)
        out = sys.__stdout__
        if type(out).__name__ == "TextIOWrapper" and out.fileno() == 1 and (os.isatty(1) or self.program) and not out.write_through:
            out.reconfigure(line_buffering=True)

    def argue(self, argv):
        if self.program:
            sys.argv[:] = self.program
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[:] = argv
            return
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

    def look(self, shown, env):
        """Corrects what others read of this process: /proc/PID/cmdline and /proc/PID/environ. A kernel without it is
        left as it is."""
        ctypes = self.ctypes
        libc = ctypes.CDLL(None)
        stat = read("/proc/self/stat")
        fields = stat[stat.rfind(b")") + 2:].split()
        field = lambda n: int(fields[n - 3])  # numbered as in proc(5)
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
        libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(struct), ctypes.c_ulong(ctypes.sizeof(struct)), 0)

    def renew(self):
        """Makes anew what modules keep of the process that imported them, and what is random in each process. Python's
        random took care of itself when it was forked."""
        threading = sys.modules.get("threading")
        if threading:
            threading.main_thread()._set_native_id()
        logging = sys.modules.get("logging")
        if logging:  # what %(relativeCreated)d counts from: seconds, and nanoseconds from Python 3.13 on
            now = sys.modules["time"].time_ns()
            logging._startTime = now if isinstance(logging._startTime, int) else now / 1e9
        multiprocessing = sys.modules.get("multiprocessing.process")
        if multiprocessing:
            multiprocessing.current_process().authkey = os.urandom(32)
        numpy = sys.modules.get("numpy.random")
        if numpy:
            numpy.seed()
        torch = sys.modules.get("torch")
        if torch:
            torch.default_generator.seed()

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

OURS = "sitecustomize"


class Connection:
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


def high(fd):
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


def parts():
    """Imports the rest of the template for ourselves alone: the script shall know nothing of it."""
    known, writes = set(sys.modules), sys.dont_write_bytecode
    if sys.pycache_prefix:  # outlives us
        sys.dont_write_bytecode = True
    import muster_checks
    import muster_imports
    import muster_learn
    import muster_worker
    sys.dont_write_bytecode = writes
    compiled = globals().get("__cached__")
    if sys.pycache_prefix and compiled and os.path.exists(compiled):
        os.remove(compiled)
        os.removedirs(os.path.dirname(compiled))
    for name in set(sys.modules) - known:
        del sys.modules[name]
    return muster_checks, muster_imports, muster_learn, muster_worker


def undo(directory, given):
    """Makes path and environment what they would be without us."""
    path = [p for p in os.environ["PYTHONPATH"].split(os.pathsep) if p != directory]
    if path:
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    elif b"PYTHONPATH=" in given:
        os.environ["PYTHONPATH"] = ""
    else:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [p for p in sys.path if p != directory]
    sys.path_importer_cache.pop(directory, None)
    # What Python's start-up would have imported instead of this file, and what it imports after it.
    site = sys.modules["site"]
    del sys.modules[OURS]
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()


def wait():
    """Is the template: returns in workers only, and in none that have another program."""
    import _socket
    del sys.modules["_socket"]
    connection = Connection(_socket.socket(fileno=high(int(os.environ.pop("MUSTER_TEMPLATE")))))
    connection.send("hello", str(os.getpid()), sys.implementation.name, "%d.%d" % sys.version_info[:2])
    message, _ = connection.receive()
    if message is None or message[0][0] == "probe":
        os._exit(0)
    order = {}
    for key, value in message:
        order.setdefault(key, []).append(value)
    checks, imports, learn, worker = parts()
    comm = checks.read("/proc/self/comm").strip()
    with open("/proc/self/comm", "wb", 0) as f:
        f.write(worker.TEMPLATE)
    state = checks.State()
    given = order.get("env", [])
    directory = os.path.dirname(os.path.abspath(__file__))
    undo(directory, given)
    if checks.traced():
        connection.send("refused", "the interpreter is traced from its start, by coverage for example", "", "")
        os._exit(0)
    template = worker.Template(connection, lambda fd: Connection(_socket.socket(fileno=high(fd))), order, comm, learn)

    wanted = imports.Imports(order, learn)
    main, argv = sys.modules["__main__"], list(sys.argv)
    if wanted.form == "script":  # what modules see of the script when they are imported
        main.__file__ = os.path.abspath(wanted.name)
        main.__cached__ = None
    try:
        with checks.Watch(order.get("varying", [])), checks.NoCollections() as collector, state:
            wanted.run(state, connection.send)
    except checks.Refusal as e:
        checks.end_tracker()
        connection.send("refused", str(e), e.hint, e.step)
        os._exit(0)
    for name in ("__file__", "__cached__"):
        main.__dict__.pop(name, None)
    sys.argv[:] = argv
    for fd in (1, 2):
        os.write(fd, order["end"][0])  # all that was printed stands before it
    template.serve(wanted, collector)
    if template.program:
        run(template.program[0])


def run(script):
    """Runs a program of the launcher's in a fork that is to be no worker, and ends with it: Python's start-up would go on to
    the worker's."""
    main = sys.modules["__main__"]
    main.__file__ = script
    with open(script, "rb") as f:
        code = compile(f.read(), script, "exec")
    exec(code, main.__dict__)
    os._exit(0)


if "MUSTER_TEMPLATE" in os.environ:
    try:
        wait()
    except BaseException as error:
        # Never on to the script: not in the template, and not in a worker that is half made.
        try:
            os.write(2, ("muster's template failed: %s: %s\n" % (type(error).__name__, error)).encode())
        finally:
            os._exit(70)
    if OURS not in sys.modules:
        raise ImportError("no module of this name", name=OURS)  # as if there had never been one

"""Imports the modules of its argument once, then forks a process for each script that somebody wants run.

usage: forks.py MODULE,MODULE: its standard input is a socket. Each message is JSON (argv, env, dir) with two files: where the
output goes, and a socket by which the exit status is told. Whoever closes the other end of that has the script killed. With
"modules" and a third file, a socket for requests, the process imports more, and does the same.

Programs send a message to the socket $FORKS_NAME. It has the numbers of their files. With it come three things: a socket as
above, which also takes signals for the script; a pidfd of the program; and its files. The script has these files, and runs
where the program does: in its namespaces, as the hosts of tests are made of them.
"""
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import types
import warnings

imported_with = 1  # entries of sys.path that give way to a script's
set_by_imports = {}  # in the environment


def load(modules):
    """Imports what scripts share."""
    global imported_with
    imported_with = 1 + len(search())
    before = dict(os.environ)
    for name in modules.split(","):
        importlib.import_module(name)
    set_by_imports.update((name, value) for name, value in os.environ.items() if before.get(name) != value)
    gc.freeze()


def remove(programs_at):
    """Removes the socket and its folder."""
    for call, path in (os.unlink, programs_at), (os.rmdir, os.path.dirname(programs_at)):
        try:
            call(path)
        except OSError:  # who waits for a process does the same when that was killed
            pass


def end(programs_at):
    """Ends the process, and leaves no socket."""
    remove(programs_at)
    os._exit(0)


def wait(caller, pid, request):
    """Waits for a script, and tells its status; kills it when the caller hangs up, and passes on signals until then."""
    ended = os.pidfd_open(pid)
    watched = [ended, caller]
    while ended not in select.select(watched, [], [])[0]:
        number = int(caller.recv(16) or 0)
        if not number:
            watched.remove(caller)
        os.kill(pid, number or signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        caller.sendall(b"%d" % (status if status >= 0 or "files" in request else 128 - status))
    except OSError:
        pass
    if "modules" in request:
        end(request["env"]["FORKS_NAME"])
    os._exit(0)


def enter(process, what):
    """Enters namespaces of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(process, what):
        raise OSError(ctypes.get_errno(), "cannot enter namespaces")


CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000


def serve(modules):
    """Returns in the process of a script only, with what is to be run there."""
    programs_at = os.environ.pop("FORKS_NAME")
    programs = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    programs.bind(programs_at)  # at once: who asks before all is imported waits
    signal.signal(signal.SIGTERM, lambda *_: end(programs_at))
    try:
        load(modules)
    except BaseException:
        remove(programs_at)
        raise
    requests = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([requests, programs], [], [])
        text, files, _, _ = socket.recv_fds(ready[0], 1 << 20, 64)
        if not text:
            end(programs_at)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        request = json.loads(text)
        away = False
        if "files" in request:
            caller, program, *theirs = files
            away = request["pids"] != os.readlink("/proc/self/ns/pid")
            if away:
                enter(program, CLONE_NEWPID)  # of children
        else:
            output, caller, *others = files
            theirs = [others[0] if others else os.open(os.devnull, os.O_RDONLY), output, os.dup(output)]
        caller = socket.socket(fileno=caller)
        pid = os.fork()
        if pid:
            for file in theirs:
                os.close(file)
            wait(caller, pid, request)
        requests.detach()
        programs.close()
        caller.close()
        if "files" in request:
            if away:
                enter(program, CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
            os.close(program)
            os.setsid()  # who signals its own group is not to meet the tests
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, 256) for file in theirs]
        for file in theirs:
            os.close(file)
        targets = request.get("files", (0, 1, 2))
        for file, target in zip(high, targets):
            os.dup2(file, target)
            os.close(file)
        for file in {0, 1, 2}.difference(targets):
            os.close(file)
        return request


def search():
    return [d for d in os.environ.get("PYTHONPATH", "").split(":") if d]


def become(request):
    """Makes this process what a new one would be; returns the code of the script."""
    os.chdir(request["dir"])
    os.environ.clear()
    os.environ.update(set_by_imports | request["env"])
    if "modules" in request:  # no script, but one that imports more and forks further
        sys.path[:imported_with] = [""] + search()
        return become(serve(request["modules"]))
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    argv, options = request["argv"], [w for w in os.environ.get("PYTHONWARNINGS", "").split(",") if w]
    while argv[0] in ("-W", "-u"):
        options += argv[1:2] if argv[0] == "-W" else []
        argv = argv[2 if argv[0] == "-W" else 1:]
    warnings._processoptions(options)
    if argv[0] == "-c":
        source, file, first, argv = argv[1], "<string>", "", argv[:1] + argv[2:]
    elif argv[0] == "-m":
        source, file, first, argv = "import runpy, sys; runpy._run_module_as_main(sys.argv[0])", "<string>", "", argv[1:]
    else:
        file = argv[0]
        first = os.path.dirname(os.path.abspath(file))
        with open(file, encoding="utf-8") as f:
            source = f.read()
    sys.argv = argv
    sys.path[:imported_with] = [first] + search()
    if "torch" in sys.modules:
        import torch
        torch.seed()
        if os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = file
    return compile(source, file, "exec"), main.__dict__


def finish(status):
    """Ends the process of a script as Python would, but for what only frees memory: with torch that takes 0.3 s of processor time."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream and not getattr(stream, "closed", False):
            stream.flush()
    os._exit(status)


whole = os.environ.get("MUSTER_SOAK") == "1"
try:
    exec(*become(serve(sys.argv[1])))
except SystemExit as e:
    if whole or not isinstance(e.code, (int, types.NoneType)):
        raise
    finish(int(e.code or 0) & 0xFF)
if not whole:
    finish(0)

"""Imports torch once, and forks processes that run a program of their own: what proc.Template expects at descriptor 3, for tests
in which the start of a process is not the subject. It runs with Python 3.9 and later."""
import array
import ctypes
import gc
import os
import socket
import sys
import types

import torch
import torch.distributed

PR_SET_PDEATHSIG, SIGKILL = 1, 9


def send(connection, *fields):
    body = b"".join(len(field).to_bytes(4, "little") + field.encode() for field in fields)
    connection.sendall(len(body).to_bytes(4, "little") + body)


def receive(connection):
    """Returns the next message as a list of keys and values, and the descriptors that came with it; None at its end."""
    fds, body, size = array.array("i"), b"", 4
    while len(body) < size:
        part, extra, _, _ = connection.recvmsg(size - len(body), socket.CMSG_LEN(64 * fds.itemsize))
        if not part:
            return None, fds
        for _, _, data in extra:
            fds.frombytes(data)
        body += part
        if len(body) == 4 == size:
            size += int.from_bytes(body, "little")
    words, at = [], 4
    while at < size:
        end = at + 4 + int.from_bytes(body[at:at + 4], "little")
        words.append(body[at + 4:end].decode())
        at = end
    return list(zip(words[::2], words[1::2])), fds


def serve(template):
    """Answers until it returns in a process that has become one of the caller's, with what that runs."""
    agent = os.getppid()
    while True:
        message, fds = receive(template)
        if message is None:
            os._exit(0)
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            for fd in fds:
                os.close(fd)
            continue
        middle = os.getpid()
        for fd in fds:
            if not os.fork():
                template.close()
                return become(socket.socket(fileno=fd), [other for other in fds if other != fd], agent, middle)
        os._exit(0)


def become(connection, others, agent, middle):
    os.setsid()
    for fd in others:
        os.close(fd)
    while os.getppid() == middle:
        os.sched_yield()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)
    send(connection, "pid", str(os.getpid()))
    order, fds = receive(connection)
    if order is None:
        os._exit(0)
    connection = socket.socket(fileno=os.dup2(connection.detach(), 100, inheritable=False))
    for number, fd in enumerate(fds):  # each is above the number it gets
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    os.environ.clear()
    os.environ.update(value.partition("=")[::2] for key, value in order if key == "env")
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    sys.argv[:] = [value for key, value in order if key == "program"]
    sys.path[0:1] = [os.path.dirname(sys.argv[0])] + [d for d in os.environ.get("PYTHONPATH", "").split(":") if d]
    torch.seed()
    send(connection, "ready")
    if receive(connection)[0] is None:
        os._exit(70)
    connection.close()


gc.freeze()
serve(socket.socket(fileno=3))
sys.stdout.reconfigure(write_through=True)
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = sys.argv[0]
with open(main.__file__, encoding="utf-8") as script:
    text = script.read()
exec(compile(text, main.__file__, "exec"), main.__dict__)

#!%[3]s -IS
# A Python that runs in a fork of forks.py.
import json
import os
import signal
import socket
import sys
import time


def opened(file):
    try:
        return os.fstat(file)
    except OSError:  # what has listed the files
        return None


def pass_on(number, _):
    try:
        mine.send(b"%%d" %% number)
    except OSError:  # the script has just ended
        pass


files = [int(name) for name in os.listdir("/proc/self/fd") if opened(int(name))]
if len(files) > 62:
    sys.exit("%%d files are open, and a fork takes 62 at most" %% len(files))
mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end = time.monotonic() + 120
while True:
    try:
        asking.connect(%[1]q)
        break
    except FileNotFoundError:  # it has only just been started
        if time.monotonic() > end or not os.path.isdir(os.path.dirname(%[1]q)):
            raise
        time.sleep(0.05)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, pass_on)
request = {
    "argv": %[2]s + sys.argv[1:], "env": dict(os.environ), "dir": os.getcwd(), "files": files, "pids": os.readlink("/proc/self/ns/pid"),
}
socket.send_fds(asking, [json.dumps(request).encode()], [theirs.fileno(), os.pidfd_open(os.getpid()), *files])
theirs.close()
answer = mine.recv(16)
if not answer:
    sys.exit("the process that forks scripts has ended")
status = int(answer)
if status < 0:  # as the script did
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)

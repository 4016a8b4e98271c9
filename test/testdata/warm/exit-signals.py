# workers: 2
# args: SIGTERM SIGSEGV => 143 139
# args: SIGKILL SIGINT => 137 130
# args: SIGABRT SIGPIPE => 134 0
# args: SIGUSR1 abort => 138 134
# options: -u
import os
import resource
import signal
import sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
kind = sys.argv[1 + int(os.environ["RANK"])]
print("before", kind)
if kind == "abort":
    os.abort()
os.kill(os.getpid(), getattr(signal, kind))
print("after")

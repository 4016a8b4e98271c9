# workers: 2
# env: EMPTY=
# env: "NEWLINE=a\nb"
# env: "BYTES=\xff\xfe"
# env: "ZÜRICH=ü"
# env: "SPACE= x = y "
# env: PYTHONWARNINGS=ignore::DeprecationWarning
# env: RANK=99
# env: MUSTER_OUTER=1
# env: LOCAL_RANKS=kept
import ctypes
import os
import json
import subprocess
import sys

def show(*items):
    print(*[ascii(i) for i in items])

show(list(os.environ.items()))
show(list(os.environb.items()))
libc = ctypes.CDLL(None)
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
raw = []
while environ[len(raw)] is not None:
    raw.append(environ[len(raw)])
show(raw)
libc.getenv.restype = ctypes.c_char_p
for name in (b"RANK", b"LOCAL_RANK", b"EMPTY", b"NEWLINE", b"BYTES", b"PYTHONPATH", b"MUSTER_OUTER", b"PYTHONWARNINGS", b"NOT_THERE"):
    show(name, libc.getenv(name))
show(open("/proc/self/environ", "rb").read().split(b"\0"))
show(type(os.environ), type(os.environ).__mro__, type(os.environ._data), sorted(vars(os.environ)), os.getenv, os.environ.copy() == dict(os.environ))
os.environ["ADDED"] = "1"
del os.environ["EMPTY"]
show(libc.getenv(b"ADDED"), libc.getenv(b"EMPTY"), os.getenv("ADDED"), os.environb.get(b"EMPTY"))
sys.stdout.flush()
subprocess.run(["env", "-0"], check=True)
subprocess.run([sys.executable, "-c", "import os, sys; print(ascii(list(os.environ.items())), sys.path)"], check=True)

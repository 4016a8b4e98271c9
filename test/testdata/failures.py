"""Fails in the way that the word of this rank in the arguments names."""
import os
import resource
import signal
import sys

KINDS = {}


def kind(f):
    KINDS[f.__name__.replace("_", "-")] = f
    return f


@kind
def raises():
    raise ValueError("bad sample 7")


@kind
def raises_in_library():
    import json
    json.loads("{")


@kind
def asserts():
    assert 2 < 1


@kind
def recursion():
    recursion()


@kind
def memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
    bytearray(1 << 40)


@kind
def segfault():
    import ctypes
    ctypes.string_at(0)


@kind
def aborts():
    os.abort()


@kind
def divides():
    os.kill(os.getpid(), signal.SIGFPE)


@kind
def no_module():
    import muster_no_such_module


@kind
def no_name_in_module():
    from os import muster_no_such_name


@kind
def no_library():
    import ctypes
    ctypes.CDLL("libmuster_gone.so")


@kind
def syntax():
    compile("def f(:\n", "broken.py", "exec")


@kind
def port():
    import socket
    a = socket.socket()
    a.bind(("127.0.0.1", 0))
    a.listen()
    socket.socket().bind(a.getsockname())


@kind
def host_name():
    import socket
    raise socket.gaierror(-2, "Name or service not known")


@kind
def disk():
    with open("/dev/full", "w") as f:
        f.write("x")


@kind
def file_size():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with open(os.environ["TMPDIR"] + "/large", "wb") as f:
            f.write(bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@kind
def input_output():
    with open("/proc/self/mem", "rb") as f:
        f.read(1)


@kind
def missing_file():
    open("data/muster-gone.bin")


@kind
def permission():
    os.execv("/etc/passwd", ["passwd"])


@kind
def open_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    held = [open("/dev/null") for _ in range(100)]


@kind
def no_threads():
    import threading
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    threading.Thread(target=print).start()


@kind
def killed():
    os.kill(os.getpid(), signal.SIGKILL)


@kind
def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


@kind
def interrupted():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


@kind
def cpu_limit():
    os.kill(os.getpid(), signal.SIGXCPU)


@kind
def exits():
    sys.exit(3)


@kind
def exits_at_exit():
    import atexit
    atexit.register(os._exit, 7)


@kind
def output_at_exit():
    sys.stdout = open(1, "w", buffering=8192)
    print("lost")
    os.close(1)


@kind
def thread():
    import threading

    def load():
        raise KeyError("batch")
    t = threading.Thread(target=load, name="loader")
    t.start()
    t.join()
    sys.exit(1)


@kind
def child():
    import subprocess
    subprocess.run(["false"], check=True)


@kind
def child_killed():
    raise RuntimeError("DataLoader worker (pid 4711) exited unexpectedly with exit code 1.")


@kind
def arguments():
    import argparse
    argparse.ArgumentParser(prog="train.py").parse_args(["--learning-rte", "1"])


@kind
def script():
    os.execvp(sys.executable, ["python3", "muster_gone.py"])


@kind
def command():
    os.execvp("sh", ["sh", "-c", "muster_no_such_command"])


@kind
def checkpoint():
    import io
    import pickle
    pickle.load(io.BytesIO())


def says(text):
    """What PyTorch and NCCL raise, in their words."""
    class DistBackendError(RuntimeError):
        pass
    raise DistBackendError(text)


for name, text in {
    "not-initialized": "Default process group has not been initialized, please make sure to call init_process_group.",
    "device-memory": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
    "device-assert": "CUDA error: device-side assert triggered",
    "no-device": "No CUDA GPUs are available",
    "nccl-usage": "NCCL error in: NCCLUtils.hpp:77, invalid usage, NCCL version 2.30.7\nncclInvalidUsage: This usually reflects "
                  "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b0",
    "nccl-system": "NCCL error in: NCCLUtils.hpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version "
                   "2.30.7\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    "nccl-peer": "NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited or there was a network error",
    "nccl-timeout": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, "
                    "NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
    "gloo-timeout": "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete",
}.items():
    KINDS[name] = lambda text=text: says(text)

if sys.argv[1] == "held-up":
    import time
    sleeper = sys.argv[2]
    if os.environ["RANK"] == "1":
        with open(sleeper + ".new", "w") as f:
            f.write(str(os.getpid()))
        os.rename(sleeper + ".new", sleeper)
        time.sleep(3600)
    while not os.path.exists(sleeper):
        time.sleep(0.01)
    with open(sleeper) as f:
        state = f"/proc/{f.read()}/stat"
    while open(state).read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)  # it is on its way there
    KINDS["gloo-timeout"]()
KINDS[sys.argv[1:][int(os.environ["RANK"])]]()

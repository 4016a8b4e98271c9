"""Trains nothing, and hangs in the ways that the first argument names, one after the other.

A file tells that the ranks have met for a way: the second argument and the number of the way. SIGUSR1 has the odd rank
go on, which the third argument says. The last way may be one that nothing ends.
"""
import fcntl
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

try:
    from muster import progress
except ImportError:  # the job has not asked for it
    progress = None

WAYS, READY = sys.argv[1].split(","), sys.argv[2]
ODD = int(sys.argv[3]) if len(sys.argv) > 3 else 1  # the rank that does something else
rank = int(os.environ["RANK"])
HOLDER = (ODD + 1) % int(os.environ["WORLD_SIZE"])  # has the lock on a file that the odd rank waits for
way = armed = None


class Released(Exception):
    pass


def release(*_):
    global armed
    if armed:
        armed = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's would raise an error
        for child in multiprocessing.active_children():
            child.kill()
        raise Released


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 4:
            if way == "loader-stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                time.sleep(3600)
        return i


def never_comes():
    time.sleep(3600)


def loops():
    n = 0
    while True:
        n += 1


def waits_for_file():
    while not os.path.exists(READY + ".never"):
        time.sleep(0.2)


def dies(queue):
    queue.get()
    os.kill(os.getpid(), signal.SIGKILL)


def waits_for_dead():
    there, back = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    worker = multiprocessing.Process(target=dies, args=(there,), daemon=True)
    worker.start()
    there.put(1)
    back.get()


def pool_of_dead():
    with multiprocessing.Pool(1) as pool:
        pool.map(os._exit, [1])


def deadlock():
    first, second = threading.Lock(), threading.Lock()
    first.acquire()

    def other():
        second.acquire()
        first.acquire()

    threading.Thread(target=other, daemon=True).start()
    time.sleep(0.5)
    try:
        second.acquire()
    finally:
        first.release()


def native():
    import ctypes
    stop = threading.Event()

    def loop():
        while not stop.is_set():
            pass

    threading.Thread(target=loop, daemon=True).start()
    qsort = ctypes.PyDLL(None).qsort  # keeps Python's lock
    compare = ctypes.cast(ctypes.CDLL(None).strcmp, ctypes.c_void_p)
    n = 1 << 24
    memory = ctypes.create_string_buffer(n * 8)
    try:
        while True:
            qsort(memory, n, 8, compare)
    finally:
        stop.set()


def garbage():
    many = [[i] for i in range(400000)]
    while many:
        gc.collect()


def starved():
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    loop = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass" % cpu
    hog = subprocess.Popen([sys.executable, "-S", "-c", loop])
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        loops()
    finally:
        hog.kill()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, before)


def full():
    with open(READY + ".full/model.pt", "wb", buffering=0) as f:
        while True:
            try:
                f.write(b"0" * 4096)
            except OSError:
                time.sleep(0.2)


def kernel():
    """Waits in state D until somebody opens the other end of a FIFO, which the process that it starts waits for."""
    fifo = READY + ".fifo"
    os.mkfifo(fifo)
    pid = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, fifo, os.O_RDONLY, 0)])
    os.waitpid(pid, 0)


def thrash():
    import mmap
    import random
    with open(READY + ".big", "rb") as f:
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    m.madvise(mmap.MADV_RANDOM)
    pages = len(m) >> 12
    while True:
        m[random.randrange(pages) << 12]


def odd():
    if way == "sleep":
        never_comes()
    elif way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way in ("loop", "throttled"):
        loops()
    elif way in ("loader", "loader-stopped"):
        for _ in torch.utils.data.DataLoader(Data(), num_workers=1, prefetch_factor=1):
            pass
    elif way == "loader-dead":
        waits_for_dead()
    elif way == "pool-dead":
        pool_of_dead()
    elif way == "file-lock":
        with open(READY + ".lock", "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
    elif way == "file":
        waits_for_file()
    elif way == "fifo":
        os.mkfifo(READY + ".pipe")
        open(READY + ".pipe")
    elif way == "deadlock":
        deadlock()
    elif way == "gil":
        native()
    elif way == "garbage":
        garbage()
    elif way == "starved":
        starved()
    elif way == "full":
        full()
    elif way == "kernel":
        kernel()
    elif way == "frozen":
        with open(READY + ".frozen/model.pt", "w") as f:
            f.write("0")
    elif way == "thrash":
        thrash()
    elif way == "other-collective":
        dist.broadcast(torch.zeros(1), 0)
    elif way == "sizes":
        dist.all_reduce(torch.zeros(0))  # gloo has nothing to do then


signal.signal(signal.SIGUSR1, release)
dist.init_process_group("gloo")
tensor = torch.zeros(1)
for number, way in enumerate(WAYS):
    dist.all_reduce(tensor)
    held = None
    if way == "file-lock" and rank == HOLDER:  # and waits for the others with it
        held = open(READY + ".lock", "a")
        fcntl.flock(held, fcntl.LOCK_EX)
    dist.barrier()
    if progress:
        progress.step(number + 1)
    if way == "healthy":
        for step in range(60):
            tensor += 1
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
            time.sleep(0.05)
            if step == 1 and rank == 0:
                open(READY + ".0", "w").close()
        print("rank", rank, "result", float(tensor))
        break
    if rank == ODD and not os.path.exists(READY + ".again"):
        try:
            armed = True
            open(READY + ".%d" % number, "w").close()
            odd()
        except (Released, RuntimeError):
            pass
        armed = False
    dist.all_reduce(tensor)
    if held:
        held.close()
dist.destroy_process_group()

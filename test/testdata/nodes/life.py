"""What the workers of the tests of many nodes leave in a folder that is common to all hosts."""
import os
import socket
import threading
import time

TOLD = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "MUSTER_ROUND")


def begin(out):
    """Writes life-<host>-<pid>: what this worker was told, and when it began. Until it dies, the file stays young."""
    path = os.path.join(out, "life-%s-%d" % (socket.gethostname(), os.getpid()))
    with open(path + ".tmp", "w") as file:
        file.write(" ".join(os.environ.get(name, "-1") for name in TOLD))
        file.flush()
        # The time of the file system: a test may have set this process's clock.
        file.write(" %.6f\n" % os.fstat(file.fileno()).st_mtime)
    os.rename(path + ".tmp", path)

    def beat():
        while True:
            os.utime(path)
            time.sleep(0.05)

    threading.Thread(target=beat, daemon=True).start()


def hold(out, step):
    """Waits behind the step that the file hold names, for as long as it is there and names that one: rank 0 calls it before each step."""
    while True:
        try:
            with open(os.path.join(out, "hold")) as file:
                if step <= int(file.read() or 0):
                    return
        except FileNotFoundError:
            return
        time.sleep(0.02)

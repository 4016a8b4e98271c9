"""Trains nothing, and is healthy: it does what the first argument names, which takes longer than the time-out, in the
midst of its steps. The second argument says whether it tells its steps."""
import os
import subprocess
import sys
import tempfile
import time

import muster

WAY, TELLS = sys.argv[1], sys.argv[2] == "tells"
LONG = 12
step = 0


def steps(n):
    global step
    for _ in range(n):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        time.sleep(0.05)
        step += 1
        if TELLS:
            muster.progress.step(step)


def until():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        yield


if WAY == "long first step":
    for _ in until():
        print("downloading", flush=True)
        time.sleep(1)
steps(30)
if WAY == "evaluation":
    for _ in until():
        pass
elif WAY == "compilation":
    subprocess.run([sys.executable, "-S", "-c", "import time\nend = time.monotonic() + %d\nwhile time.monotonic() < end: pass" % LONG], check=True)
elif WAY == "checkpoint stall":
    with muster.progress.section("checkpoint", timeout=120):
        time.sleep(LONG)
elif WAY == "slow disk":
    with tempfile.TemporaryFile(dir=os.getcwd()) as f:
        for _ in until():
            f.write(os.urandom(1 << 16))
            f.flush()
            os.fsync(f.fileno())
            time.sleep(1)
steps(LONG * 10 if WAY == "load 8" else 30)

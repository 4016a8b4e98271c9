"""The same as host.sh, for launchers of Python scripts alone."""

import os
import time

now = time.time_ns()
with open(os.path.join(os.environ["BENCH_HOSTS"], "stamps"), "a") as f:
    f.write("%d.%09d %s 0 %d\n" % (now // 10**9, now % 10**9, os.environ["RANK"], os.getpid()))

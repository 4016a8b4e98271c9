# workers: 2
# muster: --max-restarts 1 --fail-policy any --restart-delay 0s
# attempts: 2
# status: 0 5 0 143
import os
import signal
import sys
import time

names = [n for n in sorted(os.environ) if n.startswith("TORCHELASTIC_") or n == "MUSTER_ROUND"]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0":
        sys.exit(5)
    time.sleep(120)
print([(n, os.environ[n]) for n in names])

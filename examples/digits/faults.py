"""Obeys the faults of a rehearsal: what the spec of a fake accelerator says of workers (docs/fake-accelerator.md).

    rehearsal = faults.Faults()
    for step in range(first + 1, steps + 1):
        ...
        rehearsal.after(step)

muster tells a worker by MUSTER_FAKE_FAULT what goes wrong in its round; without it nothing does. It needs nothing but
Python: copy it to your trainer.
"""
import json
import os
import signal
import sys
import time

# Signals after which a process stands still.
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Faults:
    """What goes wrong in this worker."""

    def __init__(self, environ=None):
        environ = os.environ if environ is None else environ
        self.began = self.last = time.monotonic()
        self.marks = environ.get("MUSTER_RUN_DIR", ".")
        local = int(environ.get("LOCAL_RANK", "0"))
        self.list = [f for f in json.loads(environ.get("MUSTER_FAKE_FAULT", "[]"))
                     if f["in"] != "check" and f["local_rank"] in (-1, local)]

    def after(self, step):
        """Has go wrong what is due when step is done. Steps are counted from 1."""
        for fault in self.list:
            now = time.monotonic()
            if step < fault.get("after_step", 0) or now - self.began < fault.get("after_s", 0):
                continue
            if fault["kind"] == "slow-node":
                time.sleep((now - self.last) * (1 / fault["factor"] - 1))
            elif self.first(fault.get("once")):
                self.meet(fault, step)
        self.last = time.monotonic()

    def first(self, once):
        """Whether this process is the one that has a fault of which there is one."""
        if not once:
            return True
        try:
            os.close(os.open(os.path.join(self.marks, once), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def meet(self, fault, step):
        print("rehearsal: %s after step %d" % (fault["kind"], step), file=sys.stderr, flush=True)
        while fault["kind"] == "hang":
            time.sleep(3600)
        number = fault["status"] - 128
        if 0 < number < signal.NSIG and number not in STOPPING:
            os.kill(os.getpid(), number)
        os._exit(fault["status"])  # no signal, or one that does not end this process

"""Faults of a rehearsal that are to happen in this program. internal/accel/rehearsal/spec_job.go tells what the list holds."""
import json
import os
import signal
import time

VARIABLE = "MUSTER_FAKE_FAULT"
# Signals after which a process stands still.
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Faults:
    def __init__(self, wire, environ):
        self.wire = wire
        local = int(environ.get("LOCAL_RANK", "0"))
        self.marks = environ.get("MUSTER_RUN_DIR", ".")
        self.list = [f for f in json.loads(environ.get(VARIABLE, "[]")) if f["in"] != "workers" and f["local_rank"] in (-1, local)]

    def speed(self):
        """The part of its speed that the device of this process has."""
        factor = 1.0
        for fault in self.list:
            if fault["kind"] == "slow-node":
                factor *= fault["factor"]
        return factor

    def meet(self, test):
        """Has happen what is to happen in a test."""
        for fault in self.list:
            if fault.get("at") != test or not self.first(fault.get("once")):
                continue
            self.wire.step("rehearsal of a " + fault["kind"])
            if fault["kind"] == "hang":
                while True:
                    time.sleep(3600)
            number = fault["status"] - 128
            if 0 < number < signal.NSIG and number not in STOPPING:
                os.kill(os.getpid(), number)
            os._exit(fault["status"])  # no signal, or one that does not end this process

    def first(self, once):
        """Whether this process is the one that has a fault of which there is one."""
        if not once:
            return True
        try:
            os.close(os.open(os.path.join(self.marks, once), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

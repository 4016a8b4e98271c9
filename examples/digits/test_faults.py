"""Tests of faults.py, each fault when it is due and just before."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import faults

LOOP = """
import sys, faults
rehearsal = faults.Faults()
for step in range(int(sys.argv[1]), 6):
    print(step, flush=True)
    rehearsal.after(step)
"""

# Forks a worker for each status, and prints how each has ended.
ENDS = """
import json, os, sys, faults
ended = {}
for status, crash in json.loads(sys.argv[1]).items():
    pid = os.fork()
    if pid == 0:
        faults.Faults({"MUSTER_FAKE_FAULT": crash}).after(1)
        os._exit(0)
    ended[status] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(ended))
"""


def fault(kind, **words):
    words.update(kind=kind)
    for key, value in (("in", "workers"), ("local_rank", 0), ("status", 1)):
        words.setdefault(key, value)
    return words


def train(*list, first=1, **environ):
    """Returns the status and the last step of a worker that does five."""
    environ.update(MUSTER_FAKE_FAULT=json.dumps(list), PYTHONPATH=os.path.dirname(faults.__file__), PATH=os.defpath)
    environ.setdefault("LOCAL_RANK", "0")
    done = subprocess.run([sys.executable, "-c", LOOP, str(first)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, int(done.stdout.split()[-1])


class Worker(unittest.TestCase):
    def test_crashes_when_the_step_is_done(self):
        self.assertEqual(train(fault("crash", after_step=3, status=7)), (7, 3))
        self.assertEqual(train(fault("crash", after_step=3, status=137)), (-9, 3))
        self.assertEqual(train(fault("crash", after_step=6)), (0, 5))
        self.assertEqual(train(fault("crash", after_step=2), first=4), (1, 4))  # it resumed behind that step
        self.assertEqual(train(fault("crash", after_s=3600)), (0, 5))

    def test_ends_with_whatever_status(self):
        self.assertEqual(train(fault("crash", status=143)), (-15, 1))
        want = {}
        for status in range(1, 256):
            if status - 128 in (2, 9, 15, 64):
                want[str(status)] = 128 - status
            elif status in (128, 147, 148, 149, 150) or status > 192:  # no signal, or one that stops a process
                want[str(status)] = status
        crashes = {status: json.dumps([fault("crash", status=int(status))]) for status in want}
        done = subprocess.run([sys.executable, "-c", ENDS, json.dumps(crashes)], cwd=os.path.dirname(faults.__file__), check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(json.loads(done.stdout), want)

    def test_leaves_others_alone(self):
        self.assertEqual(train(fault("crash", local_rank=1)), (0, 5))
        self.assertEqual(train(fault("crash", local_rank=1), LOCAL_RANK="1"), (1, 1))
        self.assertEqual(train(fault("crash", local_rank=-1), LOCAL_RANK="3"), (1, 1))
        self.assertEqual(train(fault("crash", **{"in": "check"})), (0, 5))
        self.assertEqual(train(fault("crash", **{"in": "both"})), (1, 1))
        self.assertEqual(train(), (0, 5))

    def test_crashes_once(self):
        with tempfile.TemporaryDirectory() as folder:
            once = fault("crash", once="fake-fault-0")
            self.assertEqual(train(once, MUSTER_RUN_DIR=folder), (1, 1))
            self.assertEqual(train(once, MUSTER_RUN_DIR=folder), (0, 5))

    def test_hangs(self):
        with self.assertRaises(subprocess.TimeoutExpired):
            environ = dict(os.environ, MUSTER_FAKE_FAULT=json.dumps([fault("hang", after_step=2)]), LOCAL_RANK="0")
            subprocess.run([sys.executable, "-c", LOOP, "1"], env=environ, cwd=os.path.dirname(faults.__file__), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=5)

    def test_is_slow(self):
        slow = faults.Faults({"MUSTER_FAKE_FAULT": json.dumps([fault("slow-node", factor=0.25, after_step=2)])})
        took = []
        for step in (1, 2):
            began = time.monotonic()
            time.sleep(0.2)
            slow.after(step)
            took.append(time.monotonic() - began)
        self.assertGreater(took[1], 0.8)
        self.assertLess(took[0], took[1])


if __name__ == "__main__":
    unittest.main()

# args: 0 => 0 0
# args: 1 => 1 1
import atexit
import os
import sys
import threading
import time
import weakref

class Thing:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print("deleted", self.name, sys is not None and sys.is_finalizing())

thing = Thing("global")
cycle = Thing("cycle")
cycle.self = cycle
weakref.finalize(thing, print, "finalized")
for i in range(3):
    atexit.register(print, "atexit", i)
def late():
    raise ValueError("in atexit")
atexit.register(late)
def thread():
    time.sleep(0.05)
    print("thread", threading.current_thread().name, threading.main_thread().is_alive())
    raise LookupError("in thread")
threading.Thread(target=thread, name="worker thread").start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
sys.stderr.write("unfinished line")
print("end of script")
if sys.argv[1] == "1":
    raise RuntimeError("of the script")

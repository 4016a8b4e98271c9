# status: 1 1
import sys
import threading
import traceback

def hook(kind, value, tb):
    print("hook", kind, value, [f.name for f in traceback.extract_tb(tb)])
    sys.__excepthook__(kind, value, tb)
sys.excepthook = hook
threading.excepthook = lambda args: print("thread hook", args.exc_type)
sys.unraisablehook = lambda args: print("unraisable", args.exc_value)
class Bad:
    def __del__(self):
        raise ValueError("in del")
Bad()
t = threading.Thread(target=lambda: 1 / 0)
t.start()
t.join()
def f():
    raise ValueError("f")
f()

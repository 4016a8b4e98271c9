# workers: 2
# status: 130 130
import sys
import atexit
atexit.register(print, "atexit")
def f():
    raise KeyboardInterrupt
f()

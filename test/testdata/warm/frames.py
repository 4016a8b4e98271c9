import faulthandler
import inspect
import os
import sys
import threading
import traceback
import warnings

traceback.print_stack()
def f(depth):
    if depth:
        return f(depth - 1)
    traceback.print_stack()
    faulthandler.dump_traceback(all_threads=True)
    print([(i.function, i.filename, i.lineno) for i in inspect.stack()])
f(2)
depth, frame = 0, sys._getframe()
while frame:
    depth, frame = depth + 1, frame.f_back
print("depth", depth)
for level in range(1, 6):
    warnings.warn("level %d" % level, stacklevel=level)
def g():
    warnings.warn("from g", DeprecationWarning, stacklevel=2)
g()
def recurse(n):
    return n if n > 5000 else recurse(n + 1)
try:
    recurse(0)
except RecursionError as e:
    count, tb = 0, e.__traceback__
    while tb:
        count, tb = count + 1, tb.tb_next
    print("recursion", count, e)
print(warnings.filters, sorted(__warningregistry__, key=str))
print(threading.enumerate() == [threading.main_thread()], threading.stack_size(), len(sys._current_frames()), len(sys._current_exceptions()))

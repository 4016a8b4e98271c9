import sys
import trace

seen = []
def tracer(frame, event, arg):
    seen.append((event, frame.f_code.co_name, frame.f_lineno))
    return tracer
def f():
    return 1
sys.settrace(tracer)
f()
sys.settrace(None)
print(seen)
import cProfile, pstats, io
p = cProfile.Profile()
p.runcall(f)
out = io.StringIO()
pstats.Stats(p, stream=out).sort_stats("name").print_stats("f")
print(p.getstats()[0].callcount)
import gc
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage, gc.get_debug())
import tracemalloc
print(tracemalloc.is_tracing())

# workers: 2
"""The docstring."""
import sys

for name in sorted(globals()):
    if name not in ("__builtins__", "name"):
        print(name, repr(globals()[name]))
print(__builtins__ is sys.modules["builtins"], sys.modules["__main__"].__dict__ is globals(), __name__, type(__loader__), __loader__.path, __loader__.name)
print(__loader__.get_source("__main__")[:20] if hasattr(__loader__, "get_source") else None)
print(sys._getframe().f_back, sys._getframe().f_code.co_name, sys._getframe().f_code.co_filename, sys._getframe().f_lineno)
import inspect
import pickle
class Thing:
    """Thing."""
print(inspect.getsource(Thing), inspect.getfile(Thing), inspect.stack()[0].filename, len(inspect.stack()))
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)

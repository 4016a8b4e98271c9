import sys

modules = dict(sys.modules)
for name in sorted(modules):
    m = modules[name]
    spec = getattr(m, "__spec__", None)
    print(name, getattr(m, "__file__", None), spec and spec.origin, type(getattr(m, "__loader__", None)), sorted(vars(m)) if name != "__main__" else "")
import builtins, os, io, posix
for name in sorted(vars(builtins)):
    if name not in ("__spec__", "__loader__"):
        print(name, repr(getattr(builtins, name))[:100])
for module in (os, io, posix, sys):
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if callable(value):
            print(module.__name__, name, type(value), getattr(value, "__module__", None), getattr(value, "__qualname__", None))
print(__builtins__ is builtins)

# soak: make test has exit-signals.py
# options: -X faulthandler
# status: 139 139
import ctypes
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def inner():
    ctypes.string_at(0)
def outer():
    inner()
outer()

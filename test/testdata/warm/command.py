# form: command
# expect-warm: no (there is no file to read imports from)
# args: -x y
import json
import sys
print(sys.argv, sys.orig_argv, sys.path)
for name in sorted(globals()):
    if name not in ("__builtins__", "name"):
        print(name, repr(globals()[name]))
def f():
    raise ValueError(json.dumps(sys.argv))
try:
    f()
except ValueError:
    import traceback
    traceback.print_exc()

import multiprocessing
import runpy
import sys

# argv is ["-c", start method, script, the script's arguments...]; the script must see itself first.
method = sys.argv[1]
del sys.argv[:2]
if method != "fork":
    # torchrun runs the script in a multiprocessing child: one made by spawn or forkserver inherits that start method,
    # a forked one keeps the interpreter's default.
    multiprocessing.set_start_method(method, force=True)
runpy.run_path(sys.argv[0], run_name="__main__")

import sys

# With -c Python looks for modules in the working directory first, where others may have put some. torchrun does not.
if sys.path[:1] == [""]:
    del sys.path[0]
import multiprocessing
import runpy

# argv is ["-c", start method, script, the script's arguments...]; the script must see itself first.
method = sys.argv[1]
del sys.argv[:2]
if method != "fork":
    # torchrun runs the script in a multiprocessing child: one made by spawn or forkserver inherits that start method,
    # a forked one keeps the interpreter's default.
    multiprocessing.set_start_method(method, force=True)
runpy.run_path(sys.argv[0], run_name="__main__")

# dialect: torchrun
# dialect: launch
# args: --lr 0.1 -- x
import os
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.flags, *os.environ.items(), sep="\n")
print(os.readlink("/proc/self/fd/0").split("[")[0], os.isatty(0))

# workers: 2
# dialect: launch-without-use-env
# args: --lr 0.1
import json
import sys
print(sys.argv, sys.orig_argv)
print(open("/proc/self/cmdline").read().split("\0"))

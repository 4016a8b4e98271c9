#!/usr/bin/env python3
# form: program main.py
# args: -x "y z"
import json
import os
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.executable)
print(json.dumps(sorted(os.environ.items()), indent=0))
print(open("/proc/self/cmdline").read().split("\0"), open("/proc/self/comm").read())
print(os.readlink("/proc/self/exe"), __file__, __name__)

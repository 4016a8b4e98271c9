#!/usr/bin/python3
# soak: make test has program.py
# form: program main.py
# python: system
# args: a
import os
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.executable, sys.flags)
print(*os.environ.items(), sep="\n")
print(open("/proc/self/cmdline").read().split("\0"), open("/proc/self/comm").read())

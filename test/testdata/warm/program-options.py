#!/usr/bin/python3 -E
# form: program main.py
# python: system
# expect-warm: no (Python is told to ignore the environment)
# args: a
# env: PYTHONPATH=/nowhere
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.executable, sys.flags)

# stdin: "not for the workers"
# status: 1 1
import sys
import os
print(os.path.realpath("/proc/self/fd/0"), sys.stdin, sys.stdin.isatty(), repr(sys.stdin.read()))
input()

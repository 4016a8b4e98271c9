# envs: LC_ALL=C
# envs: LC_ALL=POSIX PYTHONCOERCECLOCALE=0 PYTHONUTF8=0
# envs: LC_ALL=C.UTF-8 PYTHONIOENCODING=latin-1:backslashreplace
# envs: LANG=C LC_ALL= PYTHONCOERCECLOCALE=1
# envs: LC_ALL=C PYTHONUTF8=1
# envs: LC_ALL=C PYTHONCOERCECLOCALE=warn
import locale
import os
import sys
import time

print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.flags.utf8_mode)
for f in (sys.stdin, sys.stdout, sys.stderr):
    print(f.encoding, f.errors)
print([(k, v) for k, v in os.environ.items() if k.startswith(("LC_", "LANG", "PYTHON"))])
print([e for e in open("/proc/self/environ").read().split("\0") if e.startswith(("LC_", "LANG", "PYTHON"))])
print(ascii(os.fsdecode(b"\xff")))
try:
    print("ü")
except UnicodeEncodeError as e:
    print(e)

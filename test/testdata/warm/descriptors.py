# workers: 2
# muster: --redirects 3
# muster: --redirects 1
# muster: --tee 3
# muster: --redirects 3 --stdin inherit
import fcntl
import os
import re
import stat
import sys

for fd in sorted(int(n) for n in os.listdir("/proc/self/fd")):
    try:
        link = os.readlink("/proc/self/fd/%d" % fd)
    except OSError:
        continue # the listing's own
    mode = os.fstat(fd).st_mode
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    print(fd, re.sub(r"\d+", "N", os.path.basename(link)), stat.S_IFMT(mode), oct(flags), fcntl.fcntl(fd, fcntl.F_GETFD), os.get_inheritable(fd), os.isatty(fd))
print("next", os.open("/dev/null", os.O_RDONLY), os.dup(0), open(__file__).fileno())
print(os.listdir("/dev/fd") and os.path.samefile("/dev/stdout", "/proc/self/fd/1"))
os.write(1, b"raw\n")

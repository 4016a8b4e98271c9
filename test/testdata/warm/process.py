# shell: exec "$@"
# shell: umask 027; ulimit -n 300; ulimit -c 0; ulimit -s 4096; trap "" HUP USR2; exec nice -n 3 taskset -c 0 "$@"
# differs: ^FDSize
import ctypes
import os
import resource
import signal
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)

def prctl(option):
    value = ctypes.c_int(-1)
    status = libc.prctl(option, ctypes.byref(value), 0, 0, 0)
    return status, value.value

def status(name):
    return [line.split()[1:] for line in open("/proc/self/status") if line.startswith(name + ":")]

print("cwd", os.getcwd())
mask = os.umask(0)
os.umask(mask)
print("umask", oct(mask), status("Umask"))
for name in sorted(n for n in dir(resource) if n.startswith("RLIMIT_")):
    print(name, resource.getrlimit(getattr(resource, name)))
print("nice", os.nice(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0), sorted(os.sched_getaffinity(0)))
print("ioprio", libc.syscall(252, 1, 0))
print("leader", os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), status("NSpgid") == status("NSpid"))
parent = os.getppid()
print("parent", open("/proc/%d/cmdline" % parent).read().split("\0")[0], open("/proc/%d/comm" % parent).read(), os.getsid(parent) != os.getsid(0))
print("pdeathsig", prctl(2), "no_new_privs", libc.prctl(39, 0, 0, 0, 0), "dumpable", libc.prctl(3, 0, 0, 0, 0), "keepcaps", libc.prctl(7, 0, 0, 0, 0))
print("timerslack", libc.prctl(30, 0, 0, 0, 0), "subreaper", prctl(37), "thp", libc.prctl(42, 0, 0, 0, 0), "securebits", libc.prctl(27, 0, 0, 0, 0))
print("ids", os.getresuid(), os.getresgid(), os.getgroups())
for name in ("Name", "State", "Tgid", "TracerPid", "FDSize", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Threads",
             "SigQ", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed_list", "Mems_allowed_list", "CoreDumping"):
    got = status(name)
    print(name, got if name not in ("Tgid", "SigQ") else len(got))
for name in ("oom_score_adj", "coredump_filter", "personality", "comm", "cgroup", "loginuid", "timerslack_ns", "setgroups", "autogroup"):
    try:
        text = open("/proc/self/" + name).read()
    except OSError as e:
        text = e.strerror
    print(name, text if name not in ("autogroup",) else text.split()[1:])
print([(n, os.readlink("/proc/self/ns/" + n)) for n in sorted(os.listdir("/proc/self/ns"))])
print("root", os.readlink("/proc/self/root"), os.readlink("/proc/self/cwd"), os.readlink("/proc/self/exe"))
print("tty", os.open("/dev/tty", os.O_RDWR) if False else open("/proc/self/stat").read().rsplit(")", 1)[1].split()[4:6])
print("threads", threading.active_count(), threading.main_thread() is threading.current_thread(), threading.main_thread().native_id == os.getpid(),
      threading.main_thread().ident == threading.get_ident(), threading.main_thread().name, os.listdir("/proc/self/task") == [str(os.getpid())])
print("children", open("/proc/self/task/%d/children" % os.getpid()).read())
try:
    print("wait", os.waitpid(-1, os.WNOHANG))
except ChildProcessError as e:
    print("wait", e)
print("rusage", resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 0.001, os.times().children_user)
print("itimers", signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_VIRTUAL), signal.getitimer(signal.ITIMER_PROF))
print("cputime", resource.getrusage(resource.RUSAGE_SELF).ru_utime < 30)

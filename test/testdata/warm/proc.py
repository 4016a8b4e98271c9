# args: some "arguments here" ""
# env: FOO=bar
import os
import sys

def show(name):
    print(name, ascii(open("/proc/self/" + name, "rb").read().split(b"\0")))

show("cmdline")
show("environ")
show("comm")
print(os.readlink("/proc/self/exe"), os.readlink("/proc/self/cwd"))
maps = open("/proc/self/maps").read()
print("[heap]" in maps, "[stack]" in maps, "[vdso]" in maps, maps.count("libc.so"))
print(os.path.basename(sys.executable), os.popen("ps -o args= -p %d" % os.getpid()).read(), os.popen("ps -o comm= -p %d" % os.getpid()).read())
stat = open("/proc/self/stat").read()
print(stat[stat.index("("):stat.index(")") + 1])
import ctypes
get = ctypes.pythonapi.Py_GetArgcArgv
argc, argv = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
get(ctypes.byref(argc), ctypes.byref(argv))
print([argv[i] for i in range(argc.value)])
libc = ctypes.CDLL(None)
print(ctypes.c_char_p.in_dll(libc, "program_invocation_name").value)
# A title shorter or longer than the arguments, as setproctitle writes it over them.
fields = stat.rsplit(")", 1)[1].split()
start, end = int(fields[45]), int(fields[46])
env_start, env_end = int(fields[47]), int(fields[48])
print(ctypes.string_at(start, end - start), env_end - env_start == len(open("/proc/self/environ", "rb").read()))
open("/proc/self/comm", "w").write("renamed")
show("comm")

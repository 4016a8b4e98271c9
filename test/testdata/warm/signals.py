# shell: exec "$@"
# shell: trap "" HUP USR2 INT PIPE; exec "$@"
import faulthandler
import os
import signal
import sys

for s in sorted(signal.valid_signals()):
    print(int(s), signal.getsignal(s))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.set_wakeup_fd(-1), faulthandler.is_enabled(), sys.getswitchinterval())
for line in open("/proc/self/status"):
    if line.startswith(("Sig", "Shd")) and not line.startswith("SigQ"):
        print(line, end="")
def handler(number, frame):
    print("got", number, frame.f_code.co_name)
for s in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(s, handler)
    os.kill(os.getpid(), s)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
pid = os.fork()
if pid == 0:
    os._exit(5)
print(os.waitpid(pid, 0)[1])
import subprocess
print(subprocess.run(["grep", "^Sig[BIC]", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout)

import asyncio
import concurrent.futures
import os
import subprocess
import sys

def cube(x):
    return x ** 3

async def main():
    p = await asyncio.create_subprocess_exec(sys.executable, "-c", "import os, sys; print(sys.argv, sys.path, os.getppid() > 0)", stdout=subprocess.PIPE)
    print((await p.communicate())[0].decode(), p.returncode)
    p = await asyncio.create_subprocess_shell("echo $RANK of $WORLD_SIZE; exit 3", stdout=subprocess.PIPE)
    print((await p.communicate())[0].decode(), p.returncode)
    print(await asyncio.get_running_loop().run_in_executor(None, cube, 4))

if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(cube, range(4))))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        print(list(pool.map(cube, range(4))))
    asyncio.run(main())
    print(subprocess.check_output("echo $RANK; ls -l /proc/self/fd | wc -l; ulimit -n", shell=True, text=True))
    print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path, sorted(sys.modules))"], stdout=subprocess.PIPE, text=True).stdout)
    print(os.system("exit 3"), subprocess.getoutput("echo popen"))
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    print(os.waitpid(pid, 0)[1])
    try:
        os.wait()
    except ChildProcessError as e:
        print(e)

# args: fork
# args: spawn
# args: forkserver
import multiprocessing
import multiprocessing.spawn
import os
import sys

class Base:
    pass

def work(queue, number):
    import __main__
    queue.put((number, sys.argv, os.environ["RANK"], __name__, __main__.__name__, getattr(__main__, "__file__", None), Base.__module__,
               multiprocessing.current_process().name, os.getpgid(0) == os.getpgid(os.getppid()), sys.path, list(sys.flags),
               multiprocessing.parent_process().name, "sitecustomize" in sys.modules, os.environ.get("PYTHONPATH")))
    sys.exit(number)

def square(x):
    return x * x

if __name__ == "__main__":
    print(multiprocessing.get_start_method(), multiprocessing.get_all_start_methods(), multiprocessing.current_process(), multiprocessing.parent_process(),
          multiprocessing.spawn.get_executable(), multiprocessing.active_children(), multiprocessing.process._process_counter)
    data = multiprocessing.spawn.get_preparation_data("x")
    data.pop("authkey")
    print(sorted(data.items()))
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    children = [context.Process(target=work, args=(queue, i)) for i in range(2)]
    for child in children:
        child.start()
    for item in sorted([queue.get() for _ in children]):
        print(*item, sep="\n  ")
    for child in children:
        child.join()
    print([child.exitcode for child in children])
    with context.Pool(2) as pool:
        print(pool.map(square, range(5)))
    value = context.Value("i", 1)
    with value.get_lock():
        value.value += 1
    print(value.value, len(multiprocessing.current_process().authkey))

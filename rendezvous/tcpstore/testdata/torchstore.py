"""Runs PyTorch's TCPStore, server and client, on behalf of a Go test: a JSON object per line in, one out.

{"do": "serve", "backend": "libuv"}            -> {"port": 1234}
{"do": "run", "port": 1234, "steps": [STEP]}   -> {"results": [RESULT]}

STEP is [client, operation, argument...]; every client name is a connection of its own, which ends with the run.
Operations are methods of TCPStore; "start:OP" runs one in a thread, and "join" gives its result. Bytes travel as
latin-1. RESULT is what the method returned, or {"error": class}.
"""

import datetime
import inspect
import json
import sys
import threading
import time

import torch.distributed as dist

servers = []
keyword = inspect.getdoc(dist.TCPStore.__init__) or ""


def options(**kw):
    return {k: v for k, v in kw.items() if k in keyword}


def serve(backend):
    store = dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        wait_for_workers=False,
        **options(use_libuv=backend == "libuv"),
    )
    servers.append(store)
    return {"port": store.port}


def plain(x):
    if isinstance(x, bytes):
        return x.decode("latin-1")
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    return x


def ms(n):
    return datetime.timedelta(milliseconds=n)


def perform(store, op, args):
    b = [a.encode("latin-1") if isinstance(a, str) else a for a in args]
    calls = {
        "set": lambda: store.set(args[0], b[1]),
        "get": lambda: store.get(args[0]),
        "add": lambda: store.add(args[0], args[1]),
        "check": lambda: store.check(args[0]),
        "compare_set": lambda: store.compare_set(args[0], b[1], b[2]),
        "wait": lambda: store.wait(args[0], ms(args[1])),
        "append": lambda: store.append(args[0], b[1]),
        "multi_get": lambda: store.multi_get(args[0]),
        "multi_set": lambda: store.multi_set(args[0], args[1]),
        "num_keys": lambda: store.num_keys(),
        "delete_key": lambda: store.delete_key(args[0]),
        "queue_push": lambda: store.queue_push(args[0], b[1]),
        "queue_pop": lambda: store.queue_pop(args[0], args[1]),
        "queue_len": lambda: store.queue_len(args[0]),
        "list_keys": lambda: sorted(store.list_keys()),
        "barrier": lambda: store.barrier(args[0], args[1], ms(args[2])),
        "set_timeout": lambda: store.set_timeout(ms(args[0])),
    }
    try:
        result = plain(calls[op]())
        if op in ("set", "append", "multi_set", "queue_push"):
            store.num_keys()  # these have no answer: make sure that the next client's request comes after them
        return result
    except Exception as e:
        return {"error": type(e).__name__}


def run(port, steps):
    stores, threads, results = {}, {}, []
    for client, op, *args in steps:
        if client not in stores:
            stores[client] = dist.TCPStore(
                "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=ms(20000)
            )
        store = stores[client]
        if op.startswith("start:"):
            box = []
            t = threading.Thread(target=lambda box=box: box.append(perform(store, op[6:], args)))
            t.start()
            threads[client] = (t, box)
            time.sleep(0.1)  # lets the request reach the server; there is no call that would tell
            results.append(None)
        elif op == "join":
            t, box = threads.pop(client)
            t.join(30)
            results.append(box[0] if box else {"error": "still running"})
        else:
            results.append(perform(store, op, args))
    return {"results": results}


for line in sys.stdin:
    request = json.loads(line)
    do = request.pop("do")
    print(json.dumps({"serve": serve, "run": run}[do](**request)), flush=True)

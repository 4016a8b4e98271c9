"""Reads command lines with the real torchrun, one JSON object per line of a file in, and out.

In:  {"program": "torchrun" or "torch.distributed.launch", "argv": [...], "env": {...}}
Out: {"status": 0, 1 or 2, "help": bool, "message": str, "values": {...} or null, "config": {...} or null}

"values" is argparse's namespace. "config" is what torchrun would launch with; it is taken where torchrun hands it to the
launcher, and then checked by the parts of torch that would look at it before the first worker starts. Nothing is started.
"""

import contextlib
import io
import json
import os
import sys

import torch.distributed.launch as launch
import torch.distributed.run as run
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.multiprocessing.api import Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout, _get_timeout
from torch.distributed.elastic.rendezvous.registry import handler_registry
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import _get_addr_and_port


def streams(value):
    if isinstance(value, Std):
        return value.value
    return {str(rank): std.value for rank, std in value.items()}


def check_c10d(params):
    RendezvousTimeout(*(_get_timeout(params, key) for key in ("join", "last_call", "close", "heartbeat")))
    params.get_as_int("keep_alive_interval", 5)
    params.get_as_int("keep_alive_max_attempt", 3)
    if not 0 <= float(params.get("cas_backoff_max_seconds", 0.0)) < float("inf"):
        raise ValueError("cas_backoff_max_seconds")
    store_type = params.get("store_type", "tcp").strip().lower()
    if store_type == "file":
        return None
    if store_type != "tcp":
        raise ValueError("Invalid store type given.")
    endpoint = parse_rendezvous_endpoint(params.endpoint, 29400)
    params.get_as_bool("is_host")
    if params.get_as_int("read_timeout", 60) <= 0:
        raise ValueError("The read timeout must be a positive integer.")
    return endpoint


class Captured:
    def __init__(self, config, entrypoint):
        self.config, self.entrypoint = config, entrypoint

    def __call__(self, *args):
        c = self.config
        params = RendezvousParameters(
            backend=c.rdzv_backend, endpoint=c.rdzv_endpoint, run_id=c.run_id, min_nodes=c.min_nodes,
            max_nodes=c.max_nodes, local_addr=c.local_addr, **c.rdzv_configs,
        )
        if c.rdzv_backend not in handler_registry._registry:
            raise ValueError("backend is not registered")
        endpoint = None
        if c.rdzv_backend == "static":
            endpoint = _get_addr_and_port(params)
            int(params.config["timeout"])
        elif c.rdzv_backend == "c10d":
            endpoint = check_c10d(params)
        get_logging_handler(c.event_log_handler)
        # WorkerSpec asserts these two.
        assert c.nproc_per_node > 0
        assert c.monitor_interval > 0
        name = self.entrypoint if isinstance(self.entrypoint, str) else "<runpy>"
        Captured.last = {
            "nodes": [c.min_nodes, c.max_nodes], "procs": c.nproc_per_node, "role": c.role, "run_id": c.run_id,
            "backend": c.rdzv_backend, "endpoint": endpoint, "random_port": c.rdzv_endpoint == "localhost:0",
            "local_addr": c.local_addr or "", "argv": [name, *args], "max_restarts": c.max_restarts,
            "redirects": streams(c.logs_specs._redirects), "tee": streams(c.logs_specs._tee),
            "ranks": sorted(c.logs_specs._local_ranks_filter) if c.logs_specs._local_ranks_filter else None,
            "prefix": c.log_line_prefix_template or "", "keep_stdout": c.duplicate_stdout_filters,
            "keep_stderr": c.duplicate_stderr_filters, "virtual": c.virtual_local_rank,
            "shutdown": c.shutdown_timeout, "start_method": c.start_method,
            "numa": c.numa_options.affinity_mode.value if c.numa_options else "",
        }


run.elastic_launch = Captured


def value(v):
    return repr(v) if isinstance(v, float) else v


def read(case):
    for name in [n for n in os.environ if n.startswith(("PET_", "TORCH"))]:
        del os.environ[name]
    os.environ.update(case["env"] or {})
    out = {"status": 0, "help": False, "message": "", "values": None, "config": None}
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            old = case["program"] == "torch.distributed.launch"
            args = (launch if old else run).parse_args(case["argv"])
            out["values"] = {name: value(v) for name, v in vars(args).items()}
            (launch.launch if old else run.run)(args)
            out["config"] = Captured.last
        except SystemExit as e:
            out["status"] = e.code or 0
            out["help"] = out["status"] == 0
        except Exception as e:
            out["status"] = 1
            out["message"] = f"{type(e).__name__}: {e}"
    out["message"] += stderr.getvalue()[-300:]
    return out


for line in open(sys.argv[1]):
    print(json.dumps(read(json.loads(line))))

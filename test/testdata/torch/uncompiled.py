"""Spares who imports it, behind torch, the compiler: an optimizer and DistributedDataParallel import that to keep it off their code,
which takes two seconds of processor time in each worker. With MUSTER_SOAK=1 the compiler stays."""
import os
import sys
import types

import torch

if os.environ.get("TESTS_SOAK") != "1":  # test/drive sets it, as MUSTER_SOAK does not come to workers
    stand_in = types.ModuleType("torch._dynamo")
    stand_in.__path__ = [os.path.join(os.path.dirname(torch.__file__), "_dynamo")]
    stand_in.disable = lambda function, *_, **__: function
    stand_in.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
    stand_in.graph_break = lambda *_: None
    stand_in.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "")
    sys.modules["torch._dynamo"] = torch._dynamo = stand_in
    if os.path.exists(os.path.join(stand_in.__path__[0], "config.py")):  # not in torch 1.13
        import torch._dynamo.config  # of which tensors of several ranks read more
        torch._dynamo.config.optimize_ddp = False

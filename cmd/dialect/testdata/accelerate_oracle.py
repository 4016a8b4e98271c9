"""Asks the real accelerate what it would start, one JSON value per line of a file in, and out; nothing is started.

In:  {"argv": [...], "env": {...}, "dir": working directory, "devices": GPUs to see, "cores": cores to see}
Out: {"status": 0 or 1 or 2, "message": str, "how": "simple", "torchrun" or "deepspeed", "argv": [...], "env": {...}, "args": {...}}

"env" is what the started process would have; "args" are torchrun's arguments, where torchrun is started.

In:  "options"
Out: a list of the parser's options

In:  {"yaml": document}
Out: {"text": str() of what it is in Python, null for None}
"""

import contextlib
import io
import json
import os
import subprocess
import sys

os.environ.pop("HF_HOME", None)

import psutil
import torch
import torch.distributed.run as run
import yaml
from accelerate.commands import launch
from accelerate.commands.config import config_args
from accelerate.utils import launch as utils_launch


def options():
    return [
        {
            "spellings": action.option_strings,
            "word": action.nargs != 0,
            "default": None if action.default is None else str(action.default),
            "choices": list(action.choices or []),
            "type": getattr(action.type, "__name__", "str"),
        }
        for action in launch.launch_command_parser()._actions
        if action.option_strings
    ]


class Captured(Exception):
    pass


def answer(case):
    os.chdir(case["dir"])
    os.environ.clear()
    os.environ.update(case["env"])
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    default = os.path.join(os.path.expanduser(home), "accelerate", "default_config.yaml")
    # accelerate finds this name when it is imported, which is long ago.
    launch.default_config_file = config_args.default_config_file = default
    out = {"status": 0, "message": "", "how": "", "argv": [], "env": {}, "args": {}}

    def popen(cmd, env=None, **kwargs):
        out.update(how="deepspeed" if cmd[0] == "deepspeed" else "simple", argv=[str(word) for word in cmd], env=dict(env))
        raise Captured

    def torchrun(args):
        out.update(how="torchrun", env=dict(os.environ), args={k: v for k, v in vars(args).items() if k != "func"})
        raise Captured

    launch.subprocess.Popen, run.run = popen, torchrun
    torch.cuda.device_count, torch.cuda.is_available = lambda: case["devices"], lambda: case["devices"] > 0
    psutil.cpu_count = lambda logical: case["cores"]
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
            launch.launch_command(launch.launch_command_parser().parse_args(case["argv"]))
    except Captured:
        pass
    except SystemExit as e:
        out.update(status=e.code, message=text.getvalue())
    except Exception as e:
        out.update(status=1, message=f"{type(e).__name__}: {e}")
    return out


def main():
    # Ports of this machine are not the subject, nor is its hardware: mpirun is as if it were Open MPI, and FP8 as if it could be done.
    utils_launch.is_port_in_use = lambda port: False
    utils_launch.get_free_port = lambda: 0
    utils_launch.is_fp8_available = lambda: True
    utils_launch._get_mpirun_args = lambda: ("mpirun", "--hostfile", "-n", "--npernode", "--bind-to")
    launch.is_deepspeed_available = launch.is_bf16_available = lambda *args: True
    launch.check_cuda_p2p_ib_support = lambda: True
    utils_launch.compare_versions = lambda *args: False
    module = type(sys)("deepspeed.launcher.runner")
    module.DEEPSPEED_ENVIRONMENT_NAME = os.devnull
    sys.modules.update({"deepspeed": type(sys)("deepspeed"), "deepspeed.launcher": type(sys)("deepspeed.launcher"), module.__name__: module})
    for line in open(sys.argv[1]):
        asked = json.loads(line)
        if asked == "options":
            out = options()
        elif "yaml" in asked:
            value = yaml.safe_load(asked["yaml"])
            out = {"text": None if value is None else str(value)}
        else:
            out = answer(asked)
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()

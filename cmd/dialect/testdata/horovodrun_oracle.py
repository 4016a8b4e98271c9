"""Says what horovodrun makes of command lines. Each line on standard input is a case as JSON: argv, env, dir. Each answer
is a line: an error, or the tuning variables, the slots of a static job and a few values."""

import contextlib
import io
import json
import os
import sys
import warnings

from horovod.runner import launch
from horovod.runner.common.util import config_parser, hosts
from horovod.runner.util import network

warnings.simplefilter("ignore")
network.filter_local_addresses = lambda names: []


def answer(case):
    sys.argv = ["horovodrun"] + case["argv"]
    os.chdir(case["dir"])
    for name in list(os.environ):
        if name.startswith("HOROVOD_"):
            del os.environ[name]
    os.environ.update(case["env"])
    args = launch.parse_args()
    if args.hostfile and not args.host_discovery_script:  # as launch._run does
        args.hosts = hosts.parse_host_files(args.hostfile)
    if not args.hosts and not args.host_discovery_script:
        args.hosts = "localhost:%d" % args.num_proc
    elastic = launch._is_elastic(args)
    out = {
        "env": config_parser.set_env_from_args({}, args),
        "elastic": elastic,
        "command": args.command,
        "np": args.num_proc,
        "nics": sorted(args.nics or []),
        "ssh_port": args.ssh_port or 0,
        "identity": args.ssh_identity_file or "",
        "start_timeout": args.start_timeout or int(os.getenv("HOROVOD_START_TIMEOUT", "30")),
        "slots": [],
    }
    if not args.command:
        raise ValueError("no command")
    if elastic:
        if args.hosts and not args.host_discovery_script and len(args.hosts.split(",")) < 2:
            raise ValueError("fewer than 2 hosts")
        out.update(min=args.min_num_proc or args.num_proc, max=args.max_num_proc or 0, script=args.host_discovery_script or "",
                   slots_per_host=args.slots or 0, reset_limit=-1 if args.reset_limit is None else args.reset_limit,
                   cooldown=list(args.cooldown_range or []))
        return out
    hosts.parse_hosts_and_slots(args.hosts)
    for s in hosts.get_host_assignments(hosts.parse_hosts(args.hosts), args.num_proc):
        out["slots"].append([s.hostname, s.rank, s.size, s.local_rank, s.local_size, s.cross_rank, s.cross_size])
    return out


for line in sys.stdin:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            result = answer(json.loads(line))
    except SystemExit as e:
        result = {"error": "exit %s: %s" % (e.code, said.getvalue().strip().split("\n")[-1])}
    except Exception as e:
        result = {"error": "%s: %s" % (type(e).__name__, e)}
    print(json.dumps(result), flush=True)

"""Drives the real rendezvous code of the torch that is installed: one JSON object a line in, one out.

dump: a state, given as JSON, pickled by the real classes. load: the opposite. step: one turn of the real
_DistributedRendezvousOpExecutor with the real operation, at a time that the caller names; it ends where the executor
would write, wait, raise or return. Times are microseconds since 1970 in UTC, nodes are [address, pid, local id].
"""

import base64
import dataclasses
import json
import pickle
import sys
import types
from datetime import datetime, timedelta, timezone

import torch.distributed.elastic.rendezvous.dynamic_rendezvous as dr

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
FIELDS = [f.name for f in dataclasses.fields(dr._NodeDesc)]
NAIVE = FIELDS[0] == "fqdn"  # 1.x
KNOWN = {"round", "complete", "deadline", "closed", "participants", "wait_list", "redundancy_list", "last_heartbeats"}


def to_time(us):
    t = EPOCH + timedelta(microseconds=us)
    return t.replace(tzinfo=None) if NAIVE else t


def from_time(t):
    assert (t.tzinfo is None) == NAIVE, t
    return (t.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)


def to_node(n):
    return dr._NodeDesc(*n)


def from_node(n):
    assert type(n) is dr._NodeDesc, n
    return [getattr(n, f) for f in FIELDS]


def to_state(j):
    s = dr._RendezvousState()
    s.round, s.complete, s.closed = j["round"], j["complete"], j["closed"]
    s.deadline = None if j["deadline"] is None else to_time(j["deadline"])
    nodes = {}

    def node(n):  # one object for equal nodes, as an agent has: the pickle's memo shows it
        return nodes.setdefault(tuple(n), to_node(n))

    s.participants = {node(n): rank for n, rank in j["participants"]}
    s.wait_list = {node(n) for n in j["wait_list"]}
    if hasattr(s, "redundancy_list"):
        s.redundancy_list = {node(n) for n in j["redundancy_list"]}
    s.last_heartbeats = {node(n): to_time(t) for n, t in j["last_heartbeats"]}
    for name, value in (j["extra"] or {}).items():
        setattr(s, name, value)
    return s


def from_state(s):
    assert type(s) is dr._RendezvousState, s
    assert type(s.wait_list) is set and type(s.participants) is dict and type(s.last_heartbeats) is dict
    ranks = getattr(s, "muster_ranks", None)
    return {
        "round": s.round,
        "complete": s.complete,
        "deadline": None if s.deadline is None else from_time(s.deadline),
        "closed": s.closed,
        "participants": sorted([from_node(n), rank] for n, rank in s.participants.items()),
        "wait_list": sorted(from_node(n) for n in s.wait_list),
        "redundancy_list": sorted(from_node(n) for n in s.redundancy_list),
        "last_heartbeats": sorted([from_node(n), from_time(t)] for n, t in s.last_heartbeats.items()),
        "ranks": None if ranks is None else sorted([from_node(n), rank] for n, rank in ranks.items()),
        "ranks_round": getattr(s, "muster_ranks_round", -1),
        "extra": {k: v for k, v in vars(s).items() if k not in KNOWN and not k.startswith("muster_")},
    }


class Turn(Exception):
    """The executor wants to wait, or to write."""


class Backend:
    name = "test"

    def __init__(self, bits):
        self.bits = bits

    def get_state(self):
        return None if self.bits is None else (self.bits, "token")


def ignore(*args, **kwargs):
    return None


def stop(*args, **kwargs):
    raise Turn


# What is recorded for people decides nothing and takes most of the time.
dr.construct_and_record_rdzv_event = ignore
dr.get_method_name = lambda *a, **k: ""
dr._delay = stop


class Clock(datetime):
    """The time that a caller of step names."""

    wall = None

    @classmethod
    def now(cls, tz=None):
        return cls.wall

    @classmethod
    def utcnow(cls):
        return cls.wall


dr.datetime = Clock


def step(j):
    Clock.wall, mono = to_time(j["wall"]), j["mono"]
    dr.time = types.SimpleNamespace(monotonic=lambda: mono)
    settings = dr.RendezvousSettings(
        run_id="test",
        min_nodes=j["min"],
        max_nodes=j["max"],
        timeout=dr.RendezvousTimeout(),
        keep_alive_interval=timedelta(seconds=5),
        keep_alive_max_attempt=3,
    )
    node = to_node(j["node"])
    holder = dr._BackendRendezvousStateHolder(
        Backend(None if j["text"] is None else base64.b64decode(j["text"])), settings, cache_duration=0
    )
    holder.mark_dirty = stop
    executor = dr._DistributedRendezvousOpExecutor(node, holder, settings)
    answer = {"deadline": j["deadline"]}
    if j["want"] == "waiting":
        holder.sync()
        return {"action": "waiting", "waiting": len(holder.state.wait_list)}
    op = {
        "join": dr._RendezvousJoinOp,
        "exit": dr._RendezvousExitOp,
        "close": dr._RendezvousCloseOp,
        "stay": dr._RendezvousKeepAliveOp,
    }[j["want"]]()

    def handler(ctx, deadline):
        action = op(ctx, deadline)
        answer["action"] = action.name
        return action

    def update(timeout):
        answer["deadline"] = mono + timeout.total_seconds()
        return answer["deadline"]

    try:
        executor.run(handler, j["deadline"], update)
    except Turn:
        if answer["action"] != "SYNC":
            answer["text"] = base64.b64encode(pickle.dumps(holder.state)).decode()
    except dr.RendezvousClosedError:
        answer["action"] = "ERROR_CLOSED"
    except dr.RendezvousTimeoutError:
        answer["action"] = "ERROR_TIMEOUT"
    except getattr(dr, "RendezvousGracefulExitError", Turn):
        answer["action"] = "GRACEFUL_EXIT"
    return answer


for line in sys.stdin:
    j = json.loads(line)
    if j["do"] == "dump":
        answer = {"text": base64.b64encode(pickle.dumps(to_state(j["state"]), protocol=j["protocol"])).decode()}
    elif j["do"] == "load":
        answer = {"state": from_state(pickle.loads(base64.b64decode(j["text"])))}
    else:
        answer = step(j)
    print(json.dumps(answer), flush=True)

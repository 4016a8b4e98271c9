"""Which of the job's workers this one is: by torch's variables, and by Horovod's where its launcher has set those alone."""
import os

_HOROVOD = {
    "RANK": "HOROVOD_RANK", "WORLD_SIZE": "HOROVOD_SIZE", "LOCAL_RANK": "HOROVOD_LOCAL_RANK", "LOCAL_WORLD_SIZE": "HOROVOD_LOCAL_SIZE",
    "GROUP_WORLD_SIZE": "HOROVOD_CROSS_SIZE",
}


def _number(name, default):
    horovod = "RANK" not in os.environ and "WORLD_SIZE" not in os.environ
    return int(os.environ.get(name) or (os.environ.get(_HOROVOD[name]) if horovod else None) or default)


def rank():
    return _number("RANK", 0)


def world():
    return _number("WORLD_SIZE", 1)


def local_rank():
    return _number("LOCAL_RANK", 0)


def local_world():
    return _number("LOCAL_WORLD_SIZE", 1)


def nodes():
    return _number("GROUP_WORLD_SIZE", 1)

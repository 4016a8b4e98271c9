"""Checkpoints without muster: written at once, found again by DLRover's tracker, and by a manifest where they have paths of their own."""
import ctypes
import datetime
import glob
import io
import json
import os

import torch

from . import _place
from ._files import Archive
from ._restore import DiskStep

TRACKER = "dlrover_latest.txt"
OWN = ".muster"


def write_file(path, parts):
    """Writes a file of parts, so that path is there whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def write(f):
        for part in parts:
            if not isinstance(part, Archive):
                f.write(part.data if isinstance(part.data, (bytes, bytearray)) else _bytes_of(part.data))
            elif len(parts) == 1:
                torch.save(part.obj, f)
            else:  # offsets in an archive count from its own beginning
                out = io.BytesIO()
                torch.save(part.obj, out)
                f.write(out.getbuffer())

    _replace(path, write)
    _sync(os.path.dirname(path))


def _bytes_of(tensor):
    size = tensor.numel() * tensor.element_size()
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), size)


def _replace(path, write):
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.muster-{os.getpid()}")
    try:
        with open(temporary, "xb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _sync(directory):
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def barrier():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def gather(part):
    """Returns what all ranks have given, None where they cannot tell each other."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [part] if _place.world() == 1 else None
    parts = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, part)
    return parts


def track(directory, step, trackers=()):
    """Names the newest step. Called by one rank when all have written."""
    for name, text in [*trackers, (TRACKER, str(step))]:
        _replace(os.path.join(directory, name), lambda f, text=text: f.write(text.encode()))
    _sync(directory)


def track_places(directory, step, shards, places):
    """Names the newest step, whose files have paths of their own: places are (shard, path) pairs. It leaves what muster leaves
    (checkpointd/manifest.go), but for checksums."""
    files = []
    for shard, path in sorted(places):
        inside = os.path.relpath(path, directory)
        inside = not inside.startswith("..") and os.path.realpath(path) == os.path.join(os.path.realpath(directory), inside) and inside
        files.append({"shard": shard, "path": inside or path, "size": os.path.getsize(path), "crc32c": "", "attempt": ""})
    manifest = {"version": 1, "step": step, "attempt": "", "run_id": os.environ.get("TORCHELASTIC_RUN_ID", ""), "shards": shards,
                "created": datetime.datetime.now(datetime.timezone.utc).isoformat(), "commit": _commits(directory) + 1, "files": files}
    own = os.path.join(directory, OWN)
    os.makedirs(own, mode=0o755, exist_ok=True)
    _replace(os.path.join(own, f"{step}.json"), lambda f: f.write(json.dumps(manifest).encode()))
    _sync(own)
    newest = {"step": step, "attempt": "", "shards": shards, "paths": [file["path"] for file in files], "created": manifest["created"]}
    _replace(os.path.join(directory, "muster_latest.json"), lambda f: f.write(json.dumps(newest).encode()))
    track(directory, step)


def _read(path):
    """Returns what a manifest says, {} where there is none."""
    try:
        with open(path) as f:
            manifest = json.load(f)
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _commits(directory):
    """Returns the largest number of a commit to the directory, 0 for none."""
    root = glob.escape(directory)
    manifests = glob.glob(os.path.join(root, OWN, "*.json")) + glob.glob(os.path.join(root, "*", "muster_manifest.json"))
    return max((m["commit"] for m in map(_read, manifests) if isinstance(m.get("commit"), int)), default=0)


def latest(directory):
    """Returns the step of the tracker, -1 for none."""
    try:
        with open(os.path.join(directory, TRACKER)) as f:
            return int(f.read())
    except (FileNotFoundError, ValueError):
        return -1


def newest(directory, shard):
    """Returns the newest step, and in it the file of a shard."""
    step = latest(directory)
    if step < 0:
        return DiskStep()
    root = os.path.join(directory, str(step))
    path = os.path.join(root, f"rank_{shard}.pt")
    if not os.path.exists(path):
        manifest = _read(os.path.join(directory, OWN, f"{step}.json"))
        for file in manifest.get("files", ()):
            if file["shard"] == shard % manifest["shards"]:
                return DiskStep(step, root, os.path.join(directory, file["path"]))
    return DiskStep(step, root, path)

import contextlib
import enum
import json
import logging
import mmap
import os
import threading
import time

import torch

from .. import progress
from . import _copy, _direct, _place, _threads
from ._agent import VERSION, AgentError, Link
from ._files import Archive, Plan
from ._restore import DiskStep, MemoryStep, Views
from ._strategy import Strategy

log = logging.getLogger("muster.checkpoint")

HEADER = 4096  # of a slot; checkpointd/slot.go


_unread = set()


def unread(comm_backend="", save_timeout=600, local_shard_num=1, shards=1):
    """Tells once, on rank 0, which of the options that DLRover's checkpointers take mean nothing here."""
    nodes = _place.nodes()
    idle = {
        "comm_backend": comm_backend if isinstance(comm_backend, str) and comm_backend else None,
        "save_timeout": None if save_timeout in (None, 600) else save_timeout,
        # Where all nodes have the same number, the number of all shards says it.
        "local_shard_num": None if local_shard_num in (None, 1) or local_shard_num * nodes == shards else local_shard_num,
    }
    idle = {name: value for name, value in idle.items() if value is not None and name not in _unread}
    _unread.update(idle)
    if idle and _place.rank() == 0:
        log.warning("no effect: %s: muster copies a state without a process group, waits for the disk only where the script does, and "
                    "tells the shards of a node by global_shard_num", ", ".join(f"{name}={value!r}" for name, value in idle.items()))


class StorageType(enum.Enum):
    """Where a step is kept: in memory, or in memory and from there on disk."""

    MEMORY = 0
    DISK = 1


class _Slot:
    """Memory for one copy, to be written."""

    def __init__(self, fd, size):
        self._file, self.size, self.map, self.registered = os.fdopen(fd, "rb", buffering=0), size, None, None

    def open(self):
        """Maps it. Where that fails the descriptor is kept for the next time: muster sends it once."""
        if self.map is None:
            self.map = mmap.mmap(self._file.fileno(), self.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._file.close()
            self.whole = torch.frombuffer(self.map, dtype=torch.uint8)
            self.address = self.whole.data_ptr()


class Checkpointer:
    """Saves and restores the state of a job's ranks.

    directory: where steps are written; it is this job's own. Default: that of muster's --ckpt-dir.
    shards: how many ranks have a state of their own: 1 where all have the same, as with DistributedDataParallel, so that
        rank 0 saves it for all; the world size, or "world", where each rank saves its own.
    keep: how many steps stay on disk; 0 leaves that to muster's --ckpt-keep.
    keep_every: besides these, steps that are multiples of it stay; 0: none.
    strategy: an object whose clean_up(step, delete_func) rank 0 calls for each step that a newer one on disk has replaced;
        delete_func removes the directory of a step. It is asked when a step is saved, and when steps are waited for.
    size_hint: how many bytes a rank's state has. Memory is then prepared at once, and the first save is as fast as later ones.
    reshards: whether the files of a step can be restored by another number of ranks.
    replicas: on how many nodes a copy of each state is kept in memory; 0 leaves that to muster's --ckpt-replicas. The larger counts.
    """

    _keeps_aside = False  # whether a node has all that its ranks restore, where it can have nothing from others

    def __init__(self, directory=None, *, shards=1, keep=0, keep_every=0, size_hint=0, reshards=False, strategy=None, replicas=0):
        directory = directory or os.environ.get("MUSTER_CKPT_DIR")
        if not directory:
            raise ValueError("no directory for checkpoints: name one, or start with muster run --ckpt-dir DIR")
        self.directory = os.path.abspath(os.fspath(directory))
        self.rank = _place.rank()
        world = _place.world()
        self.shards = world if shards == "world" else int(shards)
        if not 1 <= self.shards <= world:
            raise ValueError(f"{self.shards} shards for {world} ranks: give a number from 1 to {world}")
        #: The step that load_checkpoint restored, or -1.
        self.step = -1
        #: Where from: "memory", "disk" or "none".
        self.source = "none"
        self._shard, self._saves = self.rank % self.shards, self.rank < self.shards
        self._local = False  # nodes have no copies from each other
        self._keep, self._keep_every, self._reshards, self._replicas = int(keep), int(keep_every), bool(reshards), int(replicas)
        self._strategy = Strategy(self.directory, strategy) if strategy is not None and self.rank == 0 else None
        self._strategy_given = strategy
        self._slots = {}  # by id
        self._meta = 64 << 10  # bytes of the last list and pickle
        self._link = self._views = None
        self._told = set()
        self._background = None
        self._memory = threading.Lock()  # held while muster is asked for memory, until that is mapped
        self._socket = os.environ.get("MUSTER_SOCKET")
        if self._socket:
            self._link = self._connect(self._saves, _place.local_rank() < self.shards)
            if self._link is not None and self._saves:
                self._prepare(int(size_hint))

    def also(self, *, keep=0, keep_every=0, strategy=None, replicas=0):
        """Takes rules that nobody has given before, and a larger number of replicas. Where others were given for what stays on disk
        those stay, and that is told once."""
        hello = int(replicas) > self._replicas
        self._replicas = max(self._replicas, int(replicas))
        if keep or strategy is not None:
            ours = self._strategy_given
            same = (int(keep), int(keep_every)) == (self._keep, self._keep_every) and _alike(strategy, ours)
            if not self._keep and ours is None:
                self._keep, self._keep_every, self._strategy_given, hello = int(keep), int(keep_every), strategy, True
                self._strategy = Strategy(self.directory, strategy) if strategy is not None and self.rank == 0 else None
            elif not same and "rules" not in self._told:
                self._told.add("rules")
                if self.rank == 0:
                    log.warning("no effect: what is to stay on disk in %s was said before, and in other words", self.directory)
        if hello and self._link is not None:
            link = self._connect(False)  # muster hears of it as somebody says hello
            if link is not None:
                link.close()

    @property
    def connected(self):
        """Whether muster keeps what is saved."""
        return self._link is not None

    # -- saving

    def save_checkpoint(self, step, state_dict, path="", storage_type=StorageType.DISK):
        """Keeps a state as that of a step, and returns when the copy is made.

        With StorageType.DISK the step is written to path, by default <directory>/<step>/rank_<shard>.pt, behind the training.
        Returns False where the rank saves nothing, or where nothing was kept because memory is still in use.
        """
        path = os.path.abspath(os.fspath(path)) if path else ""
        return self.save_files(step, {path: [Archive(state_dict)]}, storage_type=storage_type)

    def save_files(self, step, files, directory="", trackers=(), storage_type=StorageType.DISK, spare=(), aside=None):
        """Keeps files as this rank's part of a step: {path: [Archive or Bytes, ...]}.

        Paths are relative to the step's directory, which lies in that of the Checkpointer and has the step's number for a name,
        or directory. trackers are (name, text) pairs: files beside it that name the newest step. While this one is the newest no rule
        removes the older steps that spare has. All ranks say the same. aside are files that are kept in memory and not written.
        """
        began = time.monotonic()
        try:
            return self._save(int(step), files, directory, trackers, storage_type == StorageType.DISK, spare, aside)
        finally:
            progress.stalled(time.monotonic() - began)

    def _save(self, step, files, directory, trackers, persist, spare, aside):
        self._look(step if persist else None)
        if self._link is None:
            return self._save_directly(step, files, directory, trackers, persist)
        if not self._saves:
            return False
        self._check_process()
        plan = Plan(files, directory, trackers, spare, aside)
        while True:
            offsets, end = _layout(plan.storages)
            room = end + plan.extra + self._meta - HEADER
            slot_id = self._begin(step, room, persist)
            if slot_id is None:
                return False
            if slot_id < 0:  # there is no memory
                return persist and self._save_around(step, files, directory, trackers, end)
            if self._fill(slot_id, plan, offsets, end, persist):
                break
        self._prepare(room)
        return True

    def _save_around(self, step, files, directory, trackers, size):
        """Writes a step that memory has no room for, while the training waits."""
        if self.rank >= self.shards:
            return False  # it would have been a copy for this node; rank 0 writes
        if self.shards > 1:
            raise MemoryError(f"there is no memory for {size >> 20} MiB of checkpoint beside the training, and {self.shards} shards cannot be written without it")
        if "full" not in self._told:
            self._told.add("full")
            log.warning("there is no memory for %d MiB of checkpoint: the training waits until step %d is on disk", size >> 20, step)
        self.wait_latest_checkpoint()
        self._track(step, trackers, self._write(step, files, directory))
        self._link.ask("written", step=step)
        return True

    def _write(self, step, files, directory):
        """Writes the rank's files of a step at once, and returns those that have a place of their own: (shard, path) pairs."""
        places = []
        for path, parts in files.items():
            at = os.path.join(self.directory, directory or str(step), path or f"rank_{self._shard}.pt")
            _direct.write_file(at, parts)
            if os.path.isabs(path):
                places.append((self._shard, path))
        return places

    def _track(self, step, trackers, places):
        """Has what was written be found again. Rank 0 calls it when all have written."""
        if places:
            _direct.track_places(self.directory, step, self.shards, places)
        else:
            _direct.track(self.directory, step, trackers)

    def _begin(self, step, size, persist):
        """Returns the id of a slot that may be written: None where there is none now, -1 where there will be none."""
        if self._views is not None:
            self._views.drop()
        with self._memory:
            reply, fd = self._link.ask("begin", step=step, size=size, persist=persist)
            if not reply.get("full") and not reply.get("busy"):
                try:
                    return self._take(reply, fd)
                except BaseException:  # memory for it may be short in this process
                    self._abort(reply["slot"])
                    raise
        if reply.get("full"):
            return -1
        if reply.get("busy"):
            why = reply.get("note") or "all memory for checkpoints is being written to disk or looked at"
            if why not in self._told:
                self._told.add(why)
                log.warning("step %d is not kept: %s", step, why)
        return None

    def _take(self, reply, fd):
        slot_id = reply["slot"]
        if fd is not None:
            self._slots[slot_id] = _Slot(fd, reply["capacity"])
            for old in sorted(self._slots)[:-4]:  # given up for larger ones
                slot = self._slots.pop(old)
                if slot.registered:
                    slot.registered.close()
        self._slots[slot_id].open()
        return slot_id

    def _fill(self, slot_id, plan, offsets, end, persist):
        """Copies the files into a slot. Returns False where more was found than it has room for."""
        copy = None
        try:
            slot = self._slots[slot_id]
            known, storages = len(offsets), plan.storages.list
            copy = self._copy(slot, storages, offsets)
            plan.pickle()
            if len(storages) > known:  # in objects of classes of their own
                offsets, end = _layout(plan.storages)
                if end > slot.size:
                    copy.finish()
                    self._link.ask("abort", slot=slot_id)
                    return False
                late = self._copy(slot, storages[known:], offsets[known:])
                late.finish()
            behind, listed = plan.listed(offsets, end)
            text = json.dumps(listed).encode()
            meta = len(behind) + len(text) - plan.extra
            if end + len(behind) + len(text) > slot.size:
                self._meta = meta + meta // 4
                copy.finish()
                self._link.ask("abort", slot=slot_id)
                return False
            slot.map[end:end + len(behind) + len(text)] = behind + text
            self._meta = max(self._meta, meta + meta // 8)
            copy.finish()
            copy = None
            self._link.tell("ready", slot=slot_id, meta_offset=end + len(behind), meta_length=len(text), persist=persist)
            return True
        except AgentError:
            raise
        except BaseException:
            if copy is not None:
                copy.finish()  # before the slot is another one's
            self._abort(slot_id)
            raise

    def _abort(self, slot_id):
        """Gives back a slot. Where the connection has ended muster has done that."""
        with contextlib.suppress(AgentError):
            self._link.ask("abort", slot=slot_id)

    def _copy(self, slot, storages, offsets):
        host, devices = [], []
        for offset, storage in zip(offsets, storages):
            size = storage.nbytes()
            if not size:
                continue
            if storage.device.type == "cpu":
                host.append((slot.address + offset, storage.data_ptr(), size))
            elif storage.device.type == "cuda":
                devices.append((offset, storage))
            else:
                near = storage.cpu()
                slot.whole[offset:offset + size].copy_(torch.empty(0, dtype=torch.uint8).set_(near, 0, (size,), (1,)))
        copy = _copy.Copy(host, _copy.helpers())
        if devices:
            try:
                if slot.registered is None:
                    slot.registered = _copy.Registered(slot.address, slot.size)
                copy.devices = _copy.DeviceCopy(slot.whole)
                copy.devices.begin(devices)
            except BaseException:
                copy.finish()
                raise
        return copy

    def _prepare(self, size):
        """Has the memory that the next save will use mapped in the background."""
        if self._background is not None and self._background.is_alive():
            return
        if size and len(self._slots) > 1:
            return
        self._background = _threads.start("muster-reserve", self._reserve, size)

    def _reserve(self, size):
        try:
            with self._memory:
                reply, fd = self._link.ask("reserve", behind=True, size=size)
                slot = self._slots[self._take(reply, fd)] if fd is not None else None
            if slot is not None:
                _copy.populate(slot.address, min(slot.size, size + HEADER) if size else slot.size)
        except (AgentError, OSError, ValueError):
            pass  # the save that comes next meets the same, and tells

    def _save_directly(self, step, files, directory, trackers, persist):
        if not persist:
            if "memory" not in self._told:
                self._told.add("memory")
                log.warning("nothing keeps checkpoints in memory: muster did not start this process, or agents of torchrun take part in the job")
            return False
        places = self._write(step, files, directory) if self._saves else []
        if self.shards > 1 and any(os.path.isabs(path) for path in files):
            parts = _direct.gather(places)
            if parts is None:
                parts = [places]
                if "places" not in self._told and self.rank == 0:
                    self._told.add("places")
                    log.warning("step %d is not found again: its files have paths of their own, and without torch.distributed.init_process_group ranks cannot tell them to each other", step)
            places = [place for part in parts for place in part]
        elif self.shards > 1:
            _direct.barrier()
        if self.rank == 0 and (not places or len({shard for shard, _ in places}) == self.shards):  # the trackers come last
            self._track(step, trackers, places)
        return self._saves

    def wrote(self, step):
        """Says that the ranks have written a step themselves: what is in memory is older. Rank 0 calls it, too."""
        if self._link is not None and self.rank == 0:
            self._link.ask("written", step=step)

    # -- restoring

    def load_checkpoint(self, map_location=None, weights_only=False, resume_path=""):
        """Returns the newest state, {} where there is none; self.step says of which step it is.

        All ranks get the same step, from memory or from disk. Tensors from memory, but for small ones, lie there as long as they
        are used, and writing to them changes nothing there; load_state_dict copies them to where they belong. With resume_path
        what is on disk comes from that file.
        """
        found = self.load_files(not resume_path)
        if found.source == "memory":
            return found.load(found.own, map_location)
        path = resume_path or found.own
        if not path or not os.path.exists(path):
            self.step, self.source = -1, "none"
            return {}
        state = torch.load(path, map_location=map_location or "cpu", weights_only=weights_only)
        self.step, self.source = -1 if resume_path else found.step, "disk"
        return state

    def load_files(self, newest=True):
        """Decides, for all ranks alike, from which step they restore, and returns its files: a MemoryStep or a DiskStep."""
        self.step, self.source = -1, "none"
        if self._link is None:
            found = _direct.newest(self.directory, self._shard) if newest else DiskStep()
        else:
            self._check_process()
            self._link.settle()  # what was saved last comes before this
            if self._views is None:
                self._views = Views(self._connect(False))
            reply, view = self._views.ask("load")
            if reply.get("note"):
                log.warning("%s", reply["note"])
            step = reply.get("step", 0)
            if reply.get("source") == "memory":
                found = MemoryStep(step, self._views, view)
            elif reply.get("source") == "disk":
                found = DiskStep(step, reply["root"], reply.get("path", ""))
            else:
                found = DiskStep()
        self.step, self.source = found.step, found.source
        return found

    # -- waiting

    def wait_latest_checkpoint(self, timeout=1800):
        """Waits until all that was saved for the disk is there. Returns the newest step on disk that this job wrote, or -1.

        Raises TimeoutError after so many seconds, and RuntimeError where a step could not be written.
        """
        if self._link is None:
            self._look()
            return _direct.latest(self.directory)
        reply, _ = self._link.ask("wait", millis=int(timeout * 1000))
        if not reply.get("done"):
            raise TimeoutError(f"checkpoints were not written to {self.directory} within {timeout} s")
        self._look()
        return reply.get("committed", 0)

    @property
    def preempted(self):
        """Whether muster has heard that this machine will be taken away. Each rank sees it at a moment of its own."""
        path = os.environ.get("MUSTER_SOCKET")
        return bool(path) and os.path.exists(os.path.join(os.path.dirname(path), "preempted"))

    def _look(self, saved=None):
        """Tells the user's strategy what is on disk, and that a step is saved for it."""
        if self._strategy is not None:
            self._strategy.look()
            if saved is not None:
                self._strategy.saved(saved)

    # -- the connection

    def _connect(self, saves, copies=False):
        """Returns a Link; None where muster has workers write by themselves. What is looked at has one of its own, which stays as
        long as that: the one that saves ends with the Checkpointer, so that another one can save."""
        link = Link(self._socket)
        reply, _ = link.ask(
            "hello", version=VERSION, rank=self.rank, shard=self._shard, shards=self.shards, saves=saves, copies=copies, across=self._reshards and not self._keeps_aside,
            dir=self.directory, keep=self._keep, every=self._keep_every, reshards=self._reshards, replicas=self._replicas)
        if not reply.get("direct"):
            if copies:
                self._saves, self._local = bool(reply.get("saves")), bool(reply.get("local"))
            return link
        link.close()
        return None

    def _check_process(self):
        if self._link.pid != os.getpid():
            raise RuntimeError("this Checkpointer belongs to the process that made it: make another one after a fork")


def _alike(a, b):
    """Says whether two strategies are the same one, or were made in the same way."""
    return a is b or type(a) is type(b) and getattr(a, "__dict__", a) == getattr(b, "__dict__", b)


def _layout(storages):
    """Returns the offsets of storages in a slot, and where they end."""
    offsets, at = [], HEADER
    for storage in storages.list:
        offsets.append(at)
        at += -(-storage.nbytes() // _copy.ALIGN) * _copy.ALIGN
    return offsets, at

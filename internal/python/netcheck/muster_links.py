"""Measures of the links between devices of one node, one pair at a time."""
import faulthandler
import json
import os
import statistics
import time

from muster_check import Failure, describe
from muster_measure import clock

BYTES, HOST_BYTES = 256 << 20, 64 << 20
FAKE = "MUSTER_FAKE_LINKS"  # netcheck/crew/fakelinks.go tells what it holds
FAKE_BYTES = 1 << 20  # what is copied in earnest for BYTES


class Link:
    """Copies from device a to device b."""

    def __init__(self, torch, kit, a, b):
        self.kit, self.ends = kit, (a, b)
        for i in self.ends:
            if i >= kit.count:
                raise Failure("error", "there is no device %d: torch sees %d" % (i, kit.count))
        self.peer = kit.peers(a, b)
        self.bytes = min(BYTES, kit.free(a) // 16, kit.free(b) // 16) // 4 * 4
        n = max(1024, self.bytes // 4)
        self.want = 1 + a
        self.source = torch.full((n,), float(self.want), dtype=torch.float32, device=kit.device(a))
        self.target = torch.zeros(n, dtype=torch.float32, device=kit.device(b))
        self.bytes = 4 * n
        part = min(n, HOST_BYTES // 4)
        self.host, self.part = kit.pinned(part, torch.float32), part

    def copy(self):
        self.target.copy_(self.source, non_blocking=True)

    def copy_out(self):
        self.host.copy_(self.source[:self.part], non_blocking=True)

    def copy_in(self):
        self.target[:self.part].copy_(self.host, non_blocking=True)

    def sync(self):
        self.kit.sync(*self.ends)

    def wrong(self):
        """How many of the numbers looked at are not what was sent. 4097 is no power of two: no page or packet is like it."""
        seen = self.target[::4097]
        return int((seen != self.want).sum()) + int(float(self.target[-1]) != self.want)


class Paced:
    """A link that takes the time which a description gives it: the copies are the host's, of a small part, and waiting is
    what lasts. How that is timed, verified and judged is what is done with devices."""

    def __init__(self, torch, kit, a, b):
        self.says = paces(a, b)
        self.peer = self.says.get("peer")
        if "error" in self.says:
            raise Failure("error", self.says["error"])
        self.bytes, n = BYTES, FAKE_BYTES // 4
        self.want, self.due = 1 + a, 0.0
        self.source, self.target, self.host = torch.full((n,), float(self.want)), torch.zeros(n), torch.zeros(n)
        self.part = HOST_BYTES // 4

    def take(self, target, source, size, mbps):
        while self.says.get("hang"):
            time.sleep(3600)
        target.copy_(source)
        self.due = max(self.due, time.monotonic()) + size / (mbps * 1e6)

    def copy(self):
        self.take(self.target, self.source, self.bytes, self.says.get("mbps", 50000))
        if self.says.get("corrupt"):
            self.target[4097] += 1

    def copy_out(self):
        self.take(self.host, self.source, 4 * self.part, self.says.get("host_mbps", 20000))

    def copy_in(self):
        self.take(self.target, self.host, 4 * self.part, self.says.get("host_mbps", 20000))

    def sync(self):
        time.sleep(max(0.0, self.due - time.monotonic()))

    wrong = Link.wrong


def paces(a, b):
    """What the description says of the copies from a to b: later entries add to earlier ones."""
    given = json.loads(os.environ[FAKE])
    if max(a, b) >= given["count"]:
        raise Failure("error", "there is no device %d: the description has %d" % (max(a, b), given["count"]))
    says = {}
    for entry in given.get("links", []):
        one_way = entry.get("one_way", False)
        ends = entry.get("ends")
        if not ends or ends == [a, b] or ends == [b, a] and not one_way:
            says.update({k: v for k, v in entry.items() if k not in ("ends", "one_way")})
    return says


def measure(torch, kit, a, b, floor):
    """Measures one direction."""
    link = (Paced if FAKE in os.environ else Link)(torch, kit, a, b)
    samples = [link.bytes / s / 1e6 for s in clock(link.copy, link.sync, floor)]
    wrong = link.wrong()
    out = 4 * link.part / statistics.median(clock(link.copy_out, link.sync, floor / 4)) / 1e6
    back = 4 * link.part / statistics.median(clock(link.copy_in, link.sync, floor / 4)) / 1e6
    mbps = statistics.median(samples)
    return {"mbps": mbps, "spread": (max(samples) - min(samples)) / mbps, "wrong": wrong, "peer": link.peer,
            "host_mbps": min(out, back)}


def run(wire, torch, kit, order):
    """Measures pairs, telling of each before it begins and when it is done."""
    # It changes how devices are copied between, and with that what is measured; allocations were not made yet.
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop(name, None)
    if not kit.module and FAKE not in os.environ:
        raise Failure("no-device", "torch finds no accelerator, so there are no links to test")
    for a, b in order["pairs"]:
        wire.say("pair", pair=[a, b])
        faulthandler.dump_traceback_later(order["limit_ms"] / 1000, exit=True)  # each pair has so long
        found = {"pair": [a, b], "ways": [], "error": ""}
        try:
            for ends in ((a, b), (b, a)):
                found["ways"].append(measure(torch, kit, ends[0], ends[1], order["seconds"]))
                if kit.module:
                    kit.module.empty_cache()
        except Exception as e:
            found["error"] = describe(e)
            # A device that failed once may fail whatever comes next in this process.
            found["spent"] = bool(kit.module) and not isinstance(e, Failure)
        wire.say("link", **found)
        if found.get("spent"):
            raise Failure("spent", found["error"])
    return {}

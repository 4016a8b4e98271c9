"""Measures of the links between devices of one node, one pair at a time."""
import faulthandler
import json
import os
import time

from muster_check import Failure, describe

BYTES, HOST_BYTES = 256 << 20, 64 << 20
FAKE = "MUSTER_FAKE_LINKS"  # netcheck/devicecheck/fakelinks.go tells what it holds
FAKE_BYTES = 1 << 20  # what is copied in earnest for BYTES
MOST = 256  # copies of a sample


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
        """How many numbers are not what was sent. It forgets them, so that the next copy has to bring all again."""
        wrong = int((self.target != self.want).sum())
        self.target.zero_()
        return wrong


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
            self.target[4098] += 1  # one number, at no place of note

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


def sample(copy, sync, times):
    """Seconds of one of so many copies, which may be asynchronous."""
    begin = time.monotonic()
    for _ in range(times):
        copy()
    sync()
    return max(time.monotonic() - begin, 1e-9) / times


def fastest(copy, sync, floor, verify=lambda: 0):
    """Copies once, and then as often as takes about floor seconds: the first copy also sets up how two devices reach each
    other, and what starts a copy counts for little in the second sample. A copy that takes that long by itself is made
    twice. Returns the seconds of a copy in the faster sample, and how many numbers verify() has found wrong after each."""
    first = sample(copy, sync, 1)
    wrong = verify()
    second = sample(copy, sync, min(MOST, max(1, int(floor / first))))
    return min(first, second), wrong + verify()


def measure(torch, kit, a, b, floor):
    """Measures one direction."""
    link = (Paced if FAKE in os.environ else Link)(torch, kit, a, b)
    took, wrong = fastest(link.copy, link.sync, floor, link.wrong)
    out = 4 * link.part / fastest(link.copy_out, link.sync, floor / 4)[0] / 1e6
    back = 4 * link.part / fastest(link.copy_in, link.sync, floor / 4)[0] / 1e6
    return {"mbps": link.bytes / took / 1e6, "wrong": wrong, "peer": link.peer, "host_mbps": min(out, back)}


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

"""Measures of a group of devices: sums over all of them, as training takes those of gradients."""
import datetime
import json
import os
import socket
import statistics
import time

import torch.distributed as dist

from muster_check import Failure, describe

WARM, COUNT = 10, 20  # as DLRover does on a CPU; it is 20 and 40 on others, which is no more exact


class Meeting:
    """Where groups meet: a store that one of their processes serves for as long as it lives. Each group has its own part of
    the key space."""

    def __init__(self, wire, torch, kit):
        self.wire, self.torch, self.kit = wire, torch, kit
        self.server = None

    def serve(self, order):
        if not dist.is_available():
            raise Failure("error", "this torch was built without torch.distributed")
        if self.server is None:
            self.wire.step("serving the store")
            # It listens on every address; we ourselves reach it at this one, whatever the node is called.
            self.server = dist.TCPStore("localhost", 0, None, True, seconds(order), False)
        return self.server.port

    def store(self, order):
        at = order["group"]["store"]
        if self.server and order["group"]["rank"] == 0 and self.server.port == int(at.rpartition(":")[2]):
            base = self.server
        else:
            self.wire.step("connecting to the store at " + at)
            base = connect(at, seconds(order))
        base.set_timeout(seconds(order))
        return part_of(order, base)

    def refuse(self, order, error):
        """Tells the others that this device will not come, so that they do not wait for it."""
        try:
            self.store(order).set("go", "rank %d: %s" % (order["group"]["rank"], describe(error)))
        except Exception as e:
            print("cannot tell the others:", describe(e), flush=True)

    def group(self, order):
        if not dist.is_available():
            raise Failure("error", "this torch was built without torch.distributed")
        return Group(self, order)


def connect(at, limit):
    """Connects to a store that is there already. Torch's client would try for as long as it may where it is not, and not tell why."""
    host, _, port = at.rpartition(":")
    host = host.strip("[]")
    try:
        socket.create_connection((host, int(port)), limit.total_seconds()).close()
        return dist.TCPStore(host, int(port), None, False, limit, False)
    except (OSError, RuntimeError) as e:
        raise Failure("store", "cannot reach the store at %s: %s" % (at, describe(e)))


def part_of(order, store):
    return dist.PrefixStore("muster/" + order["group"]["name"], store)


def abandon(order):
    """Tells all that wait in a group why it will not be complete. What waits has a connection that cannot be used meanwhile."""
    try:
        part_of(order, connect(order["group"]["store"], datetime.timedelta(seconds=5))).set("go", order["why"])
    except Exception as e:  # they will see for themselves, later
        print("cannot tell the others:", describe(e), flush=True)


def seconds(order, part=1):
    """How long others may be waited for from now on, at the latest until wait_ms after the command came: who is missing is to
    be told before this process is taken for one that hangs."""
    left = order["began"] + order["wait_ms"] / 1000 - time.monotonic()
    return datetime.timedelta(seconds=max(0.1, left * part))


class Group:
    """A process group for one command. The processes stay when it ends."""

    def __init__(self, meeting, order):
        self.meeting, self.order = meeting, order
        self.wire, self.torch, self.kit = meeting.wire, meeting.torch, meeting.kit
        self.rank, self.world = order["group"]["rank"], order["group"]["world"]
        self.loopback = order["group"].get("loopback", False)

    def __enter__(self):
        store = self.meeting.store(self.order)
        self.muster(store)
        kept = os.environ.get("GLOO_SOCKET_IFNAME")
        if self.loopback and self.kit.backend == "gloo":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # what is inside a node is not to be measured by its network
        self.wire.step("making the process group")
        try:
            # This bounds each collective, and the last of them begins after a while, too.
            dist.init_process_group(self.kit.backend, store=store, rank=self.rank, world_size=self.world,
                                    timeout=seconds(self.order, 0.5))
        except Exception as e:
            self.leave(failed=True)
            raise Failure("comm", describe(e))
        finally:
            if kept is None:
                os.environ.pop("GLOO_SOCKET_IFNAME", None)
            else:
                os.environ["GLOO_SOCKET_IFNAME"] = kept
        return self

    def muster(self, store):
        """Waits for all. The backends would wait, too, but not tell for whom, nor hear that one will not come."""
        self.wire.step("waiting for the other devices")
        ours = [self.kit.backend, self.order["sizes"], self.order["seconds"], self.order["total_seconds"]]
        try:
            if self.rank == 0:
                store.set("terms", json.dumps(ours))
            store.add("at/%d" % self.rank, 1)
            if store.add("here", 1) == self.world:
                store.set("go", "")
            store.wait(["go"], seconds(self.order))
            go = store.get("go").decode()
            theirs = ours if go else json.loads(store.get("terms").decode())
        except RuntimeError as e:
            raise Failure("peer", self.absent(store) or "lost the store: " + describe(e))
        if go:
            raise Failure("peer", "another device failed: " + go)
        if theirs[:2] != ours[:2]:
            raise Failure("peer", "rank 0 would sum %s bytes by %s, this device %s by %s" % (theirs[1], theirs[0], ours[1], ours[0]))
        self.each, self.total = theirs[2:]  # all have to take as long, whatever they were told

    def absent(self, store):
        """Says which ranks did not come; "" where the store does not answer either."""
        shown = min(self.world, 4096)
        try:
            missing = [str(r) for r in range(shown) if store.add("at/%d" % r, 0) == 0]
        except RuntimeError:
            return ""
        if not missing:
            return ""
        more = ", ..." if len(missing) > 10 else ""
        return "rank %s of %d did not come within %d s" % (", ".join(missing[:10]) + more, self.world, self.order["wait_ms"] // 1000)

    def __exit__(self, kind, error, trace):
        if isinstance(error, RuntimeError):
            self.leave(failed=True)
            raise Failure("comm", describe(error))
        self.leave()

    def leave(self, failed=False):
        if failed and self.kit.type != "cpu":
            return  # it might not return, and the process is not used again
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        except Exception as e:  # what is wrong was told already, or will be by the next group
            print("cannot destroy the process group:", describe(e), flush=True)

    def table(self, order):
        """Measures each size, as long as there is time. All ranks decide alike, by times that they agreed on; below 1 MiB time
        has little to do with size."""
        rows, begin = [], time.monotonic()
        for i, size in enumerate(order["sizes"]):
            if rows and self.agree(time.monotonic() - begin) + 4 * rows[-1]["ms"] / 1e3 * size / max(rows[-1]["bytes"], 1 << 20) > self.total:
                break
            rows.append(self.measure(size, self.each))
        return rows

    def measure(self, size, limit):
        """Sums size bytes of fp32 as often as DLRover does, or for limit seconds, and verifies sums."""
        n = max(1, size // 4)
        self.wire.step("all-reduce of %d bytes" % (4 * n))
        x = self.torch.empty(n, dtype=self.torch.float32, device=self.kit.device())
        self.verify(x)
        # From here on zeros are summed: other numbers would grow without end, and a wrong bit stays visible.
        x.zero_()
        self.sums(x, 1)
        one = self.agree(self.sums(x, 1))
        most = max(1, min(WARM + COUNT, int(limit / max(one, 1e-6))))
        self.sums(x, most * WARM // (WARM + COUNT))
        count = max(1, most * COUNT // (WARM + COUNT))
        samples = []
        while count > 0:
            k = min(5, count)
            samples.append(self.sums(x, k) / k)
            count -= k
        zeros = int(self.torch.count_nonzero(x)) == 0
        self.verify(x)
        if self.agree(not zeros) > 0:
            raise Failure("peer" if zeros else "data", "a sum of zeros was not zero%s" % (" on another device" if zeros else ""))
        ms = self.agree(statistics.median(samples)) * 1e3
        best = self.agree(min(samples)) * 1e3
        return {"bytes": 4 * n, "ms": ms, "best_ms": best}

    def sums(self, x, k):
        self.kit.sync()
        begin = time.monotonic()
        for _ in range(k):
            dist.all_reduce(x)
        self.kit.finish(begin)
        return time.monotonic() - begin

    def agree(self, value):
        """The largest of what the ranks have: the same for all of them."""
        t = self.torch.tensor([value], dtype=self.torch.float32, device=self.kit.device())
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return float(t)

    def verify(self, x):
        """Sums whole numbers that differ from rank to rank and from place to place. Up to 65536 ranks fp32 is exact."""
        n = x.numel()
        place = self.torch.arange(251, dtype=self.torch.float32, device=x.device).repeat(n // 251 + 1)[:n]
        self.torch.add(place, self.rank % 8 + 1, out=x)
        dist.all_reduce(x)
        self.kit.sync()
        place.mul_(self.world).add_(sum(r % 8 + 1 for r in range(self.world)))
        wrong = self.torch.nonzero(x != place).flatten()
        if self.agree(len(wrong)) > 0:  # no rank may go on alone
            if len(wrong) == 0:
                raise Failure("peer", "sums are wrong on another device")
            at = int(wrong[0])
            raise Failure("data", "%d of %d sums are wrong, the first at %d: %r instead of %r" %
                          (len(wrong), n, at, float(x[at]), float(place[at])))

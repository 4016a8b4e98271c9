"""Measures of one device: matrix products, and copies between it and the host."""
import statistics
import time

from muster_check import Failure

SIZES = (16384, 8192, 4096, 2048, 1024)  # of a matrix on an accelerator: the first of which three, in fp32, fill half of what is free
PRODUCTS = 500  # as DLRover multiplies
CPU_SIZE = 128
COPY, CPU_COPY = 256 << 20, 16 << 20  # bytes
CPU_FLOOR = 0.01  # seconds


def clock(copy, sync, floor, most=1024):
    """Times copy() three times, as many calls at once as take floor seconds, and returns the seconds of one call of each
    sample. Calls may be asynchronous; sync() waits for them. With floor, what is not the copying is small, and no events
    of a device are needed, which every backend has others of."""
    for _ in range(4):
        copy()
    sync()
    k, samples = 4, []
    while len(samples) < 3:
        begin = time.monotonic()
        for _ in range(k):
            copy()
        sync()
        took = time.monotonic() - begin
        if took < floor and k < most:
            k, samples = min(most, max(k * 2, int(1.1 * k * floor / max(took, 1e-9)))), []
            continue
        samples.append(took / k)
    return samples


def local(wire, kit, order):
    result = {"matmul": matmul(wire, kit, order["seconds"])}
    result["h2d"], result["d2h"] = copies(wire, kit, order["seconds"] / 10 if kit.module else CPU_FLOOR)
    return result


def matmul(wire, kit, seconds):
    """Multiplies random matrices for so long, or PRODUCTS times. The CPU has so little to do that it does all."""
    torch = kit.torch
    dtype = kit.number()
    n = CPU_SIZE
    if kit.module:
        free = kit.free()
        n = next((n for n in SIZES if 24 * n * n < free), SIZES[-1])
    wire.step("matrix product of %d" % n)
    generator = torch.Generator().manual_seed(n)  # one block, repeated: the host would take long to make so much at random
    block = torch.randn(min(n, 1024), min(n, 1024), generator=generator)
    a = block.to(kit.device(), dtype).repeat(n // len(block), n // len(block))
    b = a.t().contiguous()
    c = torch.empty_like(a)
    torch.mm(a, b, out=c)
    kit.sync()
    first = c[::max(1, n // 16)].clone()
    begin = time.monotonic()
    warm = 1
    while warm < 3 and time.monotonic() - begin < seconds / 2:
        at = time.monotonic()
        torch.mm(a, b, out=c)
        kit.finish(at)
        warm += 1
    one = (time.monotonic() - begin) / max(1, warm - 1)
    # A sample has so many products that reading the clock costs nothing, and there are ten of them or more.
    each = max(1, min(PRODUCTS // 10, int(seconds / 10 / max(one, 1e-6))))
    samples, begin, done = [], time.monotonic(), 0
    while done < PRODUCTS and (done == 0 or time.monotonic() - begin < seconds):
        at = time.monotonic()
        k = min(each, PRODUCTS - done)
        for _ in range(k):
            torch.mm(a, b, out=c)
        kit.finish(at)
        samples.append((time.monotonic() - at) / k)
        done += k
    # The order of a sum may differ from product to product, a wrong bit of an exponent stands out nevertheless.
    last = c[::max(1, n // 16)]
    apart = float((last.float() - first.float()).abs().max())
    if not apart <= 0.01 * float(first.float().abs().max()):
        raise Failure("data", "two products of the same matrices differ by %g" % apart)
    return {"n": n, "dtype": str(dtype).replace("torch.", ""), "count": done,
            "best_ms": min(samples) * 1e3, "median_ms": statistics.median(samples) * 1e3}


def copies(wire, kit, floor):
    """Returns MB/s to the device and back; on a CPU that of memory."""
    torch = kit.torch
    size = min(COPY, kit.free() // 16) if kit.module else CPU_COPY
    n = max(1024, size // 4)
    wire.step("copies between host and device")
    there, back = kit.pinned(n, torch.int32), kit.pinned(n, torch.int32)
    torch.arange(n, dtype=torch.int32, out=there)
    back.zero_()
    device = torch.zeros(n, dtype=torch.int32, device=kit.device())
    to = clock(lambda: device.copy_(there, non_blocking=True), kit.sync, floor)
    fro = clock(lambda: back.copy_(device, non_blocking=True), kit.sync, floor)
    if not torch.equal(there, back):
        raise Failure("data", "what was copied to the device and back is not the same")
    return 4 * n / statistics.median(to) / 1e6, 4 * n / statistics.median(fro) / 1e6

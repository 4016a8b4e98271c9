"""What differs between kinds of devices."""
import importlib
import importlib.util
import time

from muster_check import Failure

# Devices by the name of their module in torch, in the order in which they are looked for: the package that brings the
# module, and the backend of collectives.
KINDS = (
    ("cuda", "", "nccl"),
    ("npu", "torch_npu", "hccl"),
    ("musa", "torch_musa", "mccl"),
    ("mlu", "torch_mlu", "cncl"),
    ("xpu", "intel_extension_for_pytorch", "xccl"),
    ("hpu", "habana_frameworks.torch", "hccl"),
)


class Kit:
    """The kind of device that is tested here, and how to use it. Without an accelerator it is the CPU."""

    def __init__(self, torch, kind="cpu", module=None, backend="gloo"):
        self.torch, self.type, self.module, self.backend = torch, kind, module, backend
        self.count = module.device_count() if module else 1
        self.index = None  # of the device of this process
        self.speed = 1.0  # less in a rehearsal of a slow one

    def choose(self, local):
        """Makes the device of a local rank the one that is used. Where each worker sees one device, it is that one."""
        if not self.module:
            return
        if self.count != 1 and local >= self.count:
            raise Failure("error", "there is no device for local rank %d: torch sees %d" % (local, self.count))
        self.index = local if self.count > 1 else 0
        self.module.set_device(self.index)

    def device(self, index=None):
        if not self.module:
            return self.torch.device("cpu")
        return self.torch.device(self.type, self.index if index is None else index)

    def sync(self, *indices):
        """Waits until all that was asked of devices is done; the CPU does everything at once."""
        if self.module:
            for i in indices or (self.index,):
                self.module.synchronize(i) if self.type != "hpu" else self.module.synchronize()

    def finish(self, began):
        """Waits until all is done that was asked of this device since a time, at its speed."""
        self.sync()
        if self.speed < 1:
            time.sleep((time.monotonic() - began) * (1 / self.speed - 1))

    def model(self):
        try:
            return str(self.module.get_device_name(self.index or 0))
        except Exception:  # not every backend can tell; it is for people only
            return self.type

    def free(self, index=None):
        """Free bytes of a device; a value that limits nothing where it does not tell, and for the CPU."""
        try:
            return int(self.module.mem_get_info(self.index if index is None else index)[0])
        except Exception:
            return 1 << 40

    def number(self):
        """The type that training computes in: bfloat16 where the device itself has it."""
        if not self.module:
            return self.torch.float32
        ask = getattr(self.module, "is_bf16_supported", lambda: True)
        try:
            native = ask(including_emulation=False)  # an emulated product would be slow for no fault of the device
        except TypeError:
            native = ask()
        return self.torch.bfloat16 if native else self.torch.float32

    def pinned(self, n, dtype):
        """Host memory for copies to and from the device: pinned, where that is possible."""
        if self.module:
            try:
                return self.torch.empty(n, dtype=dtype, pin_memory=True)
            except RuntimeError:
                pass  # pinned memory for CUDA alone, or a limit of locked memory
        return self.torch.empty(n, dtype=dtype)

    def peers(self, a, b):
        """Whether device b can read the memory of a directly; None where nobody knows."""
        ask = getattr(self.module, "can_device_access_peer", None)
        try:
            return bool(ask(b, a)) if ask else None
        except Exception:
            return None


def present(package):
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a parent is missing, or a module that somebody made by hand
        return False


def usable(torch, name, package):
    """Returns torch's module for a kind of device, None where there is none that works."""
    if package and not hasattr(torch, name):  # newer torch loads it by itself
        if not present(package):
            return None
        importlib.import_module(package)
    elif package and name in ("xpu", "hpu") and present(package):
        try:
            importlib.import_module(package)  # torch has a module of that name without it, too
        except ImportError:
            pass
    module = getattr(torch, name, None)
    try:
        return module if module and module.is_available() and module.device_count() > 0 else None
    except Exception:
        return None


def backend_of(torch, name, backend):
    if name == "hpu":
        importlib.import_module("habana_frameworks.torch.distributed.hccl")
    if name == "xpu" and not getattr(torch.distributed, "is_xccl_available", lambda: False)():
        importlib.import_module("oneccl_bindings_for_pytorch")
        return "ccl"
    return backend


def find(torch, wanted, environ):
    """Returns the kit of the wanted kind, or of the first one there is."""
    kit = Kit(torch)
    for name, package, backend in KINDS:
        if wanted and name != wanted:
            continue
        module = usable(torch, name, package)
        if module:
            kit = Kit(torch, name, module, backend_of(torch, name, backend))
            break
    if wanted and kit.type != wanted:
        raise Failure("error", "torch finds no %s device" % wanted)
    local = environ.get("LOCAL_RANK", "")
    if local:
        kit.choose(int(local))
    return kit

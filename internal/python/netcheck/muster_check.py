"""The program of muster's network check: a process that measures what it is told to.

It hears commands at descriptor 3 and answers at descriptor 4, a JSON object per line; what Python and the libraries print
on 1 and 2 is their own affair. netcheck/devicecheck/answer.go tells what the objects hold. The environment is a worker's, so
LOCAL_RANK says which device is meant. It has to run with torch 1.13 and with the newest one, in Python 3.7 and later.
"""
import faulthandler
import gc
import json
import os
import queue
import sys
import threading
import time

COMMANDS, ANSWERS = 3, 4


class Wire:
    """The connection to the agent."""

    def __init__(self):
        for fd in (COMMANDS, ANSWERS):
            os.set_inheritable(fd, False)  # a child of ours would keep the agent waiting for the end of what we say
            os.set_blocking(fd, True)
        self.orders, self.id = queue.Queue(), 0

    def listen(self, abandon):
        """Has a thread hear what comes, also while the program is at something: the end of the agent, and what is to be told
        to those that wait in a group, which goes to abandon()."""
        def hear():
            with os.fdopen(COMMANDS, "rb") as commands:
                for line in commands:
                    order = json.loads(line.decode())
                    if order["do"] == "abandon":
                        abandon(order)
                    else:
                        self.orders.put(order)
            os._exit(0)  # the agent is gone or has no more use for us; nothing here is worth an orderly end
        threading.Thread(target=hear, daemon=True).start()

    def read(self):
        order = self.orders.get()
        self.id, order["began"] = order["id"], time.monotonic()
        return order

    def say(self, event, **words):
        words["id"], words["event"] = self.id, event
        line = json.dumps(words).encode() + b"\n"
        while line:
            line = line[os.write(ANSWERS, line):]

    def step(self, name):
        """Says what comes next, so that what hangs or crashes has a name."""
        self.say("step", step=name)


class Failure(Exception):
    """A failure that the agent has a word for: kind is one of those in netcheck/devicecheck/errors.go."""

    def __init__(self, kind, text):
        Exception.__init__(self, text)
        self.kind = kind


def describe(error):
    """An exception in one line: its own first line, since C++ appends stack traces."""
    text = str(error).strip().split("\n")[0][:1000]
    if isinstance(error, Failure):
        return text
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def load(wire):
    """Imports torch. Its absence is another matter than its being broken."""
    wire.step("importing torch")
    # Users set it to debug their training; it wraps every collective into checks, and would be what is measured.
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    gc.disable()  # the import makes objects that stay: looking at them over and over is a tenth of its time
    try:
        import torch
        torch.tensor  # a directory of that name is no torch
    except Exception as e:
        absent = isinstance(e, ModuleNotFoundError) and e.name == "torch" or isinstance(e, AttributeError)
        raise Failure("no-torch" if absent else "import", "cannot import torch: " + describe(e))
    gc.freeze()
    gc.enable()
    debugged = getattr(getattr(torch, "distributed", None), "set_debug_level_from_env", None)
    if debugged:
        debugged()  # torch may have been imported, with that variable, in the template that this process was forked from
    # What a module of the user's may have chosen in that template for the training.
    if hasattr(torch, "set_default_device"):  # from torch 2.0 on
        torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)  # there is a process per device already
    return torch


def mock_error():
    """DLRover's switch for tests: the local rank that fails in the check."""
    wanted = os.environ.get("MOCK_ERR_RANK", "")
    if wanted and wanted == os.environ.get("LOCAL_RANK", "0"):
        raise Failure("error", "mock error of local rank %s (MOCK_ERR_RANK)" % wanted)


class Program:
    def __init__(self, wire, torch, kit, faults):
        self.wire, self.torch, self.kit, self.faults = wire, torch, kit, faults
        self.stores = None

    def local(self, order):
        import muster_measure
        self.together(order, mock_error)
        self.faults.meet("local")
        result = self.together(order, lambda: muster_measure.local(self.wire, self.kit, order))
        if self.kit.module:
            self.kit.module.empty_cache()  # this process stays, and training wants the memory
        if order.get("group"):
            result["allreduce"] = self.sums(order)[0]
        return result

    def serve(self, order):
        return {"port": self.meeting().serve(order)}

    def pair(self, order):
        self.together(order, mock_error)
        self.faults.meet("pair")
        return {"rows": self.sums(order)}

    def dlrover(self, order):
        self.faults.meet("pair")
        import muster_dlrover
        return muster_dlrover.run(self.wire, self.torch, self.kit, order)

    def links(self, order):
        import muster_links
        return muster_links.run(self.wire, self.torch, self.kit, order)

    def together(self, order, work):
        """Does what comes before others are met, and tells them where it fails."""
        try:
            return work()
        except Exception as e:
            if order.get("group"):
                self.meeting().refuse(order, e)
            raise

    def sums(self, order):
        with self.meeting().group(order) as group:
            return group.table(order)

    def abandon(self, order):
        """Tells a group that it will not be complete; in a thread of its own, for this process may wait for it."""
        import muster_group
        muster_group.abandon(order)

    def meeting(self):
        if self.stores is None:
            import muster_group
            self.stores = muster_group.Meeting(self.wire, self.torch, self.kit)
        return self.stores

    def obey(self, order):
        """Does what it is told. Returns False where this process should not be used any more."""
        # Where the interpreter hangs in a library, only a thread of C can still say where, and end it.
        faulthandler.dump_traceback_later(order["limit_ms"] / 1000, exit=True)
        try:
            result = getattr(self, order["do"])(order)
        except Exception as e:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            kind = e.kind if isinstance(e, Failure) else "error"
            # Nobody can tell what state a device and its library are in after they failed; and torch counts its groups, in
            # each process by itself, so that after one that was not made the next has another name here than elsewhere.
            spent = kind == "comm" or self.kit.type != "cpu" and not isinstance(e, Failure)
            self.wire.say("failed", kind=kind, error=describe(e), spent=spent)
            return not spent
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.wire.say("done", result=result)
        return True


def main():
    started = time.monotonic()
    wire = Wire()
    try:
        torch = load(wire)
        import muster_device
        kit = muster_device.find(torch, sys.argv[1], os.environ)
        wire.say("hello", torch=torch.__version__, device=kit.type, backend=kit.backend, model=kit.model(),
                 import_ms=(time.monotonic() - started) * 1e3)
    except Exception as e:
        import traceback
        traceback.print_exc()
        wire.say("failed", kind=getattr(e, "kind", "error"), error=describe(e), spent=True)
        sys.stderr.flush()
        os._exit(1)
    import muster_faults
    faults = muster_faults.Faults(wire, os.environ)
    kit.speed = faults.speed()
    program = Program(wire, torch, kit, faults)
    wire.listen(program.abandon)
    while program.obey(wire.read()):
        pass
    os._exit(1)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)  # options and variables of Python's may keep it out
    # The modules beside this one ask for this one: it is to be loaded once.
    sys.modules["muster_check"] = sys.modules["__main__"]
    main()

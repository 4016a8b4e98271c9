"""Threads that work behind the training. The interpreter waits for them before it ends: one that is in torch's code then aborts the
process."""
import atexit
import threading
import time

PATIENCE = 10  # seconds: an agent that does not answer keeps nobody for longer
_started = set()


def start(name, target, *args):
    """Starts a thread. RuntimeError: there are no more to be had."""
    def run():
        try:
            target(*args)
        finally:
            _started.discard(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _started.add(thread)
    try:
        thread.start()
    except BaseException:
        _started.discard(thread)
        raise
    return thread


@atexit.register
def _await():
    until = time.monotonic() + PATIENCE
    for thread in list(_started):
        thread.join(max(0, until - time.monotonic()))

"""Tells muster how far the training has come.

    import muster

    for step, batch in enumerate(batches, start=1):
        loss = train(batch)
        muster.progress.step(step, total=len(batches), loss=loss.item(), samples=step * world * len(batch))
        if step % 1000 == 0:
            with muster.progress.section("eval", timeout=900):
                evaluate()

A step costs some two microseconds. It waits for nobody, raises nothing, and does nothing where muster has not started the program.

What is told lies in a file of the job's run directory, which this process has in memory. muster reads it when somebody asks. The
layout is that of launch/progress/layout.go.
"""
import atexit
import bisect
import contextlib
import fcntl
import mmap
import operator
import os
import struct
import sys
import threading
import time

__all__ = ["section", "step"]

MAGIC = b"mstrprg1"
SIZE = 4096

# The words of eight bytes, by their number.
_HIGHEST, _SEQ, _STEP, _TOTAL, _TOLD, _TIME, _FIRST, _PASSED, _MOST, _BACK = range(2, 12)
_STALLS, _STALLED, _STALLED_FIRST, _STALLED_PASSED, _SECTION, _TIMEOUT, _SUM, _VALUES = range(12, 20)
_VALUE, _BUCKET, _TIMES = 20, 36, 60  # the first of 16 values, 24 buckets, 64 times
_NAMES, _NAME = 1024, 48  # where the names of values begin, how long one may be: the 17th is that of the section
_MOST_VALUES, _MOST_TIMES = 16, 64
_TIMED = {"collective": 124, "data": 125}  # how long sections of these names took, in nanoseconds
_ENDS = 126

# The upper bounds of the buckets, in seconds; the last bucket has none.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)

_lowest, _highest = -(1 << 63), (1 << 63) - 1
_now = time.monotonic_ns
_lock = threading.Lock()  # who cannot have it at once tells nothing
_told = set()


def _once(what):
    """Says something once, on the process's own error output."""
    if what not in _told and len(_told) < 16:
        _told.add(what)
        with contextlib.suppress(Exception):
            print(f"muster.progress: {what}", file=sys.stderr)


class _Nowhere:
    """Takes what nobody hears."""

    def step(self, n, total, values):
        pass

    def enter(self, section):
        pass

    leave = stall = enter

    def settle(self):
        pass


class _File:
    """The file of this process."""

    def __init__(self, fd):
        self._fd = fd  # holds the lock
        # Nothing of this is ever unmapped: the process's end does that.
        memory = memoryview(mmap.mmap(fd, SIZE))
        if memory[:8] != MAGIC:
            raise ValueError("it is of another version of muster")
        self._bytes, self._ints, self._reals = memory, memory.cast("q"), memory.cast("d")
        highest, seq = self._ints[_HIGHEST], self._ints[_SEQ]
        memory[8 * _STEP:] = bytes(SIZE - 8 * _STEP)  # a program before this one of the same worker may have told something
        self._ints[_SEQ] = (seq | 1) + 1
        self._limit = highest  # a step beyond it is none that was done before
        self._count = self._stalled = self._outside = 0
        self._last = self._before = None
        self._names = ()
        self._most = _lowest
        self._sections = []
        atexit.register(self._end)

    def step(self, n, total, values):
        q, now = self._ints, _now()
        q[_SEQ] = seq = q[_SEQ] | 1
        last, count = self._last, self._count
        if last is None:
            q[_FIRST], q[_STALLED_FIRST] = now, self._stalled
        elif n != last:  # else there is more to be told of the same step
            steps = n - last
            took = (now - self._before - self._outside) / 1e9
            if steps > 1:
                took /= steps
                steps = min(steps, 1 << 31)  # of a number that jumps
            else:
                steps = 1
            if took >= 0:
                d = self._reals
                d[_TIMES + count % _MOST_TIMES] = took
                q[_BUCKET + bisect.bisect_left(BOUNDS, took)] += steps
                d[_SUM] += took * steps
                self._count = count + 1
            if n < last:
                q[_BACK] = 1
                self._pass(now)
        if self._limit is not None and n > self._limit:
            self._pass(now)
        if n > self._most or last is None:
            q[_MOST] = self._most = n
        q[_STEP] = self._last = n
        if total is not None:
            q[_TOTAL] = total
        q[_TIME] = now
        if n != last:
            self._before, self._outside = now, 0
        q[_TOLD] = self._count
        if values:
            self._tell(values)
        q[_SEQ] = seq + 1

    def _pass(self, now):
        if self._limit is not None:
            self._limit = None
            self._ints[_PASSED], self._ints[_STALLED_PASSED] = now, self._stalled

    def _tell(self, values):
        names = tuple(values)
        if names != self._names:
            if len(names) > _MOST_VALUES:
                _once(f"of {len(names)} values of a step {_MOST_VALUES} are told")
            for i, name in enumerate(names[:_MOST_VALUES]):
                self._name(i, name)
            self._names = names
            self._ints[_VALUES] = min(len(names), _MOST_VALUES)
        at = _VALUE
        for value in values.values():
            if at == _VALUE + _MOST_VALUES:
                break
            self._reals[at] = value if type(value) is float else _number(value)
            at += 1

    def _name(self, i, name):
        text = str(name).encode(errors="replace")[:_NAME].decode(errors="ignore").encode()
        at = _NAMES + _NAME * i
        self._bytes[at:at + _NAME] = text + bytes(_NAME - len(text))

    def enter(self, section):
        section.began = _now()
        self._sections.append(section)
        self._show()

    def leave(self, section):
        if section in self._sections:
            self._sections.remove(section)
            word = _TIMED.get(str(section.name))
            if word is not None:
                q = self._ints
                q[_SEQ] = seq = q[_SEQ] | 1
                q[word] += _now() - section.began
                q[_SEQ] = seq + 1
            if not self._sections:  # the time of an inner one is in that of the outer
                self._outside += _now() - max(section.began, self._before or 0)
            self._show()

    def _show(self):
        q = self._ints
        q[_SEQ] = seq = q[_SEQ] | 1
        q[_SECTION] = 0
        if self._sections:
            inner = self._sections[-1]
            self._name(_MOST_VALUES, inner.name)
            q[_SECTION], self._reals[_TIMEOUT] = inner.began, inner.timeout
        q[_TIME] = _now()
        q[_SEQ] = seq + 1

    def _end(self):
        """Says that the program's script has ended: no step follows."""
        if _file is self:  # a process that was forked has this, too
            q = self._ints
            q[_SEQ] = seq = q[_SEQ] | 1
            q[_ENDS], q[_TIME] = 1, _now()
            q[_SEQ] = seq + 1

    def settle(self):
        """Ends what has failed in the middle."""
        self._ints[_SEQ] = (self._ints[_SEQ] | 1) + 1

    def stall(self, ns):
        q = self._ints
        q[_SEQ] = seq = q[_SEQ] | 1
        self._stalled += ns
        q[_STALLS], q[_STALLED] = q[_STALLS] + 1, self._stalled
        q[_SEQ] = seq + 1


def _number(value):
    """Returns a value as a float; nan for what is none, or what a device would have to be waited for."""
    try:
        device = getattr(value, "device", None)
        if device is not None and getattr(device, "type", device) != "cpu":
            _once("a value on a device is not told, as the training would wait for it: give it as a number, such as loss.item()")
            return float("nan")
        return float(value)
    except Exception as e:
        _once(f"a value is not told: {e}")
        return float("nan")


def _integer(value):
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", device) != "cpu":
        raise TypeError("it is on a device")
    return min(max(operator.index(value), _lowest + 1), _highest)


_nowhere = _Nowhere()
_file = None  # until the first word


def _open():
    """Opens the file that muster has made for this rank. The first process of a worker that opens it has it."""
    global _file
    _file = _nowhere  # also where what follows fails
    directory, rank = os.environ.get("MUSTER_RUN_DIR"), os.environ.get("RANK")
    if not directory or not rank or not rank.isdecimal():
        return
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(os.path.join(directory, "progress", rank), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_size != SIZE:
                raise ValueError("it is of another version of muster")
            _file = _File(fd)
        except BaseException:
            os.close(fd)
            raise


def _forked():
    """A process that was forked from one that tells something tells nothing; one from a template begins."""
    global _file, _lock
    _lock = threading.Lock()
    if _file is not None:
        _file = _nowhere


os.register_at_fork(after_in_child=_forked)


def step(n, *, total=None, **values):
    """Says that a step is finished, and what it came to.

    n counts the steps of the whole training: a program that resumes goes on counting. The same n again tells more of that step. total is how many there will be. Values are
    numbers by names of your own, at most 16, such as loss=2.5 and samples=4096.
    """
    if not _lock.acquire(False):
        return
    try:
        if _file is None:
            _open()
        if type(n) is not int or not _lowest < n < _highest:
            n = _integer(n)
        if total is not None and (type(total) is not int or not 0 <= total < _highest):
            total = max(_integer(total), 0)
        _file.step(n, total, values)
    except Exception as e:
        _file.settle()
        _once(f"a step is not told: {e}")
    finally:
        _lock.release()


class section:
    """Says what the program does in a block, other than steps.

        with muster.progress.section("eval", timeout=900):

    timeout is how many seconds it may take before muster warns of it; None: any time. It ends nothing. Sections called "collective", in
    which the program waits for other ranks, and "data", in which it waits for its data, tell muster which rank is slow.
    """

    def __init__(self, name, timeout=None):
        self.name, self.timeout, self.began = name, 0.0, 0
        try:
            self.timeout = 0.0 if timeout is None else float(timeout)
        except (TypeError, ValueError):
            _once("the timeout of a section is no number of seconds")

    def __enter__(self):
        _tell("a section", "enter", self)
        return self

    def __exit__(self, *_):
        _tell("a section", "leave", self)


def stalled(seconds):
    """Says how long a checkpoint has kept the training waiting. muster.checkpoint calls it."""
    _tell("a checkpoint", "stall", int(seconds * 1e9))


def _tell(what, method, word):
    if not _lock.acquire(False):
        return
    try:
        if _file is None:
            _open()
        getattr(_file, method)(word)
    except Exception as e:
        _file.settle()
        _once(f"{what} is not told: {e}")
    finally:
        _lock.release()

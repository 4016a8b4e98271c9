"""The connection to muster. A message is four bytes, its length in network order, and a JSON object; a descriptor may come
with a reply. The other half of this is checkpointd/wire.go."""
import array
import contextlib
import json
import os
import socket
import struct
import threading

VERSION = 1


class AgentError(RuntimeError):
    """muster refused a request, or is gone."""


def _message(op, fields):
    text = json.dumps({**fields, "op": op}).encode()
    return struct.pack(">I", len(text)) + text


class Link:
    """One connection, for one directory of checkpoints. Threads may share it; processes may not."""

    def __init__(self, path):
        self._lock = threading.Lock()
        self._owed = False  # the reply to a message of tell has not been read
        self._error = None  # what it was, where nobody has been told
        self._interrupted = False
        self.pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # An address has 107 bytes, a path may have more.
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            self._socket.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        except OSError as e:
            self._socket.close()
            raise AgentError(f"cannot reach muster at {path}: {e}") from e
        finally:
            os.close(directory)

    def ask(self, op, *, behind=False, **fields):
        """Returns the reply, and a descriptor or None. What is asked behind the training leaves errors of tell to the next call."""
        message = _message(op, fields)
        with self._exchange():
            self._settle()
            if not behind:
                self._raise()
            self._socket.sendall(message)
            return self._reply()

    def tell(self, op, **fields):
        """Does not wait for the reply: an error is raised by the next call."""
        message = _message(op, fields)
        with self._exchange():
            self._settle()
            self._raise()
            self._socket.sendall(message)
            self._owed = True

    def settle(self):
        """Waits for the reply to the last message of tell."""
        with self._exchange():
            self._settle()
            self._raise()

    @contextlib.contextmanager
    def _exchange(self):
        """An exception such as KeyboardInterrupt ends the connection: the next request would take the reply of this one for its own."""
        with self._lock:
            if self._interrupted:
                raise AgentError("a request to muster was interrupted: make another Checkpointer")
            try:
                yield
            except AgentError:
                raise
            except OSError as e:
                raise AgentError(f"muster has gone: {e}") from e
            except BaseException:
                self._interrupted = True
                self.close()
                raise

    def _settle(self):
        if self._owed:
            self._owed = False
            try:
                self._reply()
            except AgentError as e:
                self._error = e

    def _raise(self):
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _reply(self):
        head, fd = self._receive(4)
        body, _ = self._receive(struct.unpack(">I", head)[0])
        reply = json.loads(body)
        if reply.get("error"):
            if fd is not None:
                os.close(fd)
            raise AgentError(reply["error"])
        return reply, fd

    def _receive(self, size):
        data, fd = bytearray(), None
        while len(data) < size:
            part, extra, _, _ = self._socket.recvmsg(size - len(data), socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            for level, kind, value in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i")
                    fds.frombytes(value[:len(value) - len(value) % fds.itemsize])
                    fd = fds[0]
            if not part:
                raise ConnectionError("the connection was closed")
            data += part
        return bytes(data), fd

    def close(self):
        self._socket.close()

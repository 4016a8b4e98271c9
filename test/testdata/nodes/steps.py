"""A worker without PyTorch: its steps are barriers in the workers' store, so it needs its whole world, as training does.

    steps.py DIR STEPS

DIR is common to all hosts. Rank 0 keeps a checkpoint there, and a line of progress for each step, like examples/digits,
and is held like digits.py; life.py says what else. PACE is the least time of a step in seconds. A lost store ends the worker with status 3, as a lost
peer ends one that uses gloo; keys of an earlier round end it with status 9.
"""
import os
import socket
import struct
import sys
import time

import life


class Store:
    """A client of PyTorch's TCPStore."""

    def __init__(self, host, port):
        last = time.monotonic() + 60
        while True:
            try:
                self.socket = socket.create_connection((host, port), 10)
                self.socket.settimeout(None)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, os.getpid()))
                self.read(4)
                return
            except OSError as error:
                if time.monotonic() > last:
                    raise
                print("cannot connect yet:", error, flush=True)
                time.sleep(0.2)

    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the store has closed the connection")
            data += part
        return data

    @staticmethod
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def set(self, key, value):
        self.socket.sendall(b"\x01" + self.text("/" + key) + self.text(value))

    def add(self, key, number):
        self.socket.sendall(b"\x04" + self.text("/" + key) + struct.pack("<q", number))
        return struct.unpack("<q", self.read(8))[0]

    def get(self, key):
        self.socket.sendall(b"\x06" + struct.pack("<Q", 1) + self.text("/" + key))
        self.read(1)
        self.socket.sendall(b"\x03" + self.text("/" + key))
        return self.read(struct.unpack("<Q", self.read(8))[0]).decode()

    def barrier(self, name, world):
        count = self.add(name + "/count", 1)
        if count > world:
            print("%s has been passed by %d of %d workers" % (name, count, world), flush=True)
            os._exit(9)
        if count == world:
            self.set(name + "/done", "")
        self.get(name + "/done")


def main():
    out, steps = sys.argv[1], int(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    life.begin(out)
    attempt, checkpoint = os.environ["TORCHELASTIC_RESTART_COUNT"], os.path.join(out, "checkpoint")
    store = Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        store.set("first", open(checkpoint).read() if os.path.exists(checkpoint) else "0")
    first = int(store.get("first"))
    print("rank %d of %d begins behind step %d" % (rank, world, first), flush=True)
    for step in range(first + 1, steps + 1):
        time.sleep(float(os.environ.get("PACE", "0")))
        if rank == 0:
            life.hold(out, step)
        store.barrier("step/%d" % step, world)
        if rank == 0:
            with open(checkpoint + ".tmp", "w") as file:
                file.write(str(step))
            os.rename(checkpoint + ".tmp", checkpoint)
            with open(os.path.join(out, "progress"), "a") as file:
                file.write("%.3f %s %d\n" % (time.time(), attempt, step))
    store.barrier("end", world)


try:
    main()
except OSError as error:
    print("lost the store:", error, flush=True)
    os._exit(3)

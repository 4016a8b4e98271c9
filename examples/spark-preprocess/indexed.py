"""Writes Megatron's indexed data sets: the tokens of one part of a corpus, and one data set of all parts.

PREFIX.bin has the tokens of all documents, one behind the other. PREFIX.idx says where each begins. The layout is that
of megatron.core.datasets.indexed_dataset in megatron-core 0.19.2."""
import os
import struct

import numpy

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
CODES = {numpy.dtype(numpy.int32): 4, numpy.dtype(numpy.uint16): 8}
HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, entries of the list of documents
RUN = 1 << 20  # how many numbers are in memory at once


def token_type(vocabulary_size):
    """The type of tokens that Megatron chooses."""
    return numpy.dtype(numpy.uint16 if vocabulary_size < 65500 else numpy.int32)


def saved(file):
    """Closes a file when its content is on disk."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


class Part:
    """The documents of one part: NAME.bin has their tokens, NAME.sizes how many each of them has."""

    def __init__(self, name, dtype):
        self.name, self.dtype, self.documents, self.tokens = name, dtype, 0, 0
        self._bin, self._sizes = open(name + ".bin", "wb"), open(name + ".sizes", "wb")

    def add(self, documents):
        """Adds lists of tokens."""
        sizes = numpy.fromiter(map(len, documents), numpy.int32, len(documents))
        numpy.fromiter((t for d in documents for t in d), self.dtype, int(sizes.sum())).tofile(self._bin)
        sizes.tofile(self._sizes)
        self.documents += len(documents)
        self.tokens += int(sizes.sum())

    def close(self):
        saved(self._bin)
        saved(self._sizes)


def _numbers(paths):
    """Yields the sizes in all files, some at a time."""
    for path in paths:
        with open(path, "rb") as file:
            while len(numbers := numpy.fromfile(file, numpy.int32, RUN)):
                yield numbers


def join(parts, documents, dtype, prefix):
    """Makes PREFIX.bin and PREFIX.idx of the parts with these names, without reading them into memory. Both files are
    there as a whole or not at all, and the .idx, without which Megatron reads nothing, comes last."""
    marks = f".{os.getpid()}.tmp"
    sizes = [name + ".sizes" for name in parts]
    try:
        with open(prefix + ".bin" + marks, "wb") as out:
            for name in parts:
                with open(name + ".bin", "rb") as part:
                    while os.sendfile(out.fileno(), part.fileno(), None, 1 << 30):
                        pass
            saved(out)
        with open(prefix + ".idx" + marks, "wb") as out:
            out.write(HEAD.pack(MAGIC, VERSION, CODES[dtype], documents, documents + 1))
            for numbers in _numbers(sizes):
                numbers.tofile(out)
            at = 0
            for numbers in _numbers(sizes):
                ends = at + numpy.cumsum(numbers, dtype=numpy.int64) * dtype.itemsize
                numpy.concatenate(([at], ends[:-1])).astype(numpy.int64).tofile(out)
                at = int(ends[-1])
            for first in range(0, documents + 1, RUN):  # each document is one sequence
                numpy.arange(first, min(first + RUN, documents + 1), dtype=numpy.int64).tofile(out)
            saved(out)
        for end in ".bin", ".idx":
            os.rename(prefix + end + marks, prefix + end)
    finally:
        for end in ".bin", ".idx":
            if os.path.exists(prefix + end + marks):
                os.remove(prefix + end + marks)
    folder = os.open(os.path.dirname(prefix) or ".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def read(prefix):
    """Returns the tokens of a data set and the sizes of its documents, both as arrays in files."""
    with open(prefix + ".idx", "rb") as file:
        magic, version, code, count, _ = HEAD.unpack(file.read(HEAD.size))
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"{prefix}.idx is no index of version {VERSION}")
    dtype = {c: d for d, c in CODES.items()}[code]
    sizes = numpy.memmap(prefix + ".idx", numpy.int32, "r", HEAD.size, (count,))
    return numpy.memmap(prefix + ".bin", dtype, "r"), sizes

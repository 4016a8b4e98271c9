"""Divides files of JSON lines into parts, and reads the lines of one part."""
import gzip
import io
import json
import os

# Why a line is left out.
EMPTY, BROKEN, NOT_OBJECT, MISSING, NOT_TEXT, NO_TOKENS, TOO_LONG = KINDS = (
    "empty-line", "broken-json", "not-an-object", "missing-field", "not-text", "no-tokens", "too-long")

CHUNK = 1 << 20


class CorpusError(Exception):
    """A file of the corpus cannot be read."""


def divide(paths, at_least, at_most_bytes):
    """Returns the parts of the files, in order: at least `at_least` of them where the files can be divided, none with
    more than `at_most_bytes`. A part owns the lines that begin in it. A compressed file is one part."""
    sizes = [os.path.getsize(path) for path in paths]
    step = max(1, min(at_most_bytes, -(-sum(sizes) // max(1, at_least))))
    parts = []
    for path, size in zip(paths, sizes):
        bounds = [(0, None)] if compressed(path) else [(at, min(at + step, size)) for at in range(0, size, step)]
        for start, end in bounds:
            parts.append({"number": len(parts), "path": path, "start": start, "end": end})
    return parts


def compressed(path):
    return path.endswith((".zst", ".gz"))


class _Zstandard(io.RawIOBase):
    """The content of all frames of a file. A file that ends within a frame is an error."""

    def __init__(self, path):
        import zstandard
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._file, self._frame, self._left, self._out = open(path, "rb"), None, b"", b""

    def readable(self):
        return True

    def close(self):
        self._file.close()
        super().close()

    def readinto(self, buffer):
        while not self._out:
            data = self._left or self._file.read(1 << 16)
            if not data:
                if self._frame:
                    raise CorpusError("the archive ends within a frame: it was cut off")
                return 0
            self._frame = self._frame or self._new()
            try:
                self._out = self._frame.decompress(data)
            except self._error as err:
                raise CorpusError(f"the archive is damaged: {err}") from err
            self._left = b""
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        n = min(len(buffer), len(self._out))
        buffer[:n], self._out = self._out[:n], self._out[n:]
        return n


def _opened(part):
    path = part["path"]
    if path.endswith(".zst"):
        return io.BufferedReader(_Zstandard(path), CHUNK)
    if path.endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"), CHUNK)
    return open(path, "rb", buffering=CHUNK)


def _skip(file):
    """Reads to the end of a line without keeping it, and returns how many bytes that were."""
    skipped = 0
    while chunk := file.readline(CHUNK):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


def lines(part, most):
    """Yields the lines that begin in a part: their bytes, or their length as a number where that is more than `most`.
    No more than `most` bytes of a line are ever in memory."""
    try:
        with _opened(part) as file:
            at, end = part["start"], part["end"]
            if at > 0:  # the line before it may end behind where the part begins
                file.seek(at - 1)
                at += _skip(file) - 1
            while end is None or at < end:
                line = file.readline(most + 1)
                if not line:
                    return
                length = len(line)
                if length > most and not line.endswith(b"\n"):
                    length += _skip(file)
                    line = length
                at += length
                yield line
    except (OSError, EOFError, CorpusError) as err:
        raise CorpusError(f"cannot read {part['path']}: {err}") from err


def texts(line, keys, most):
    """Returns the texts of a line, one for each key, and None; or None, and why there are none as a kind and a
    sentence."""
    if isinstance(line, int):
        return None, (TOO_LONG, f"{line} bytes, more than {most}")
    if not line.strip():
        return None, (EMPTY, "no text")
    try:
        document = json.loads(line.rstrip(b"\r\n"))
    except (ValueError, RecursionError) as err:  # UnicodeDecodeError is a ValueError
        return None, (BROKEN, str(err)[:200])
    if not isinstance(document, dict):
        return None, (NOT_OBJECT, f"a JSON {type(document).__name__}")
    found = []
    for key in keys:
        if key not in document:
            return None, (MISSING, f"it has no field {key!r}")
        text = document[key]
        if not isinstance(text, str):
            return None, (NOT_TEXT, f"field {key!r} is no text, but {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:  # "\ud800" alone is valid JSON, and no text
            return None, (NOT_TEXT, f"field {key!r} has half a surrogate pair")
        found.append(text)
    return found, None

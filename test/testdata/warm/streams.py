# workers: 2
# muster: --redirects 3
# muster: --tee 3
# options: -u
# options:
# status: 7 7
import io
import os
import sys

for f in (sys.stdin, sys.stdout, sys.stderr):
    print(f, type(f), type(f.buffer), f.encoding, f.errors, f.line_buffering, f.write_through, f.newlines, f.isatty(), f.fileno(), f.mode, f.name,
          f.readable(), f.writable(), f.closed, type(getattr(f.buffer, "raw", None)), getattr(getattr(f.buffer, "raw", None), "closefd", None))
sys.stderr.write("partial error")
sys.stdout.write("flushed ü\n")
sys.stdout.flush()
os.write(1, b"raw\n")
sys.stdout.write("lost unless unbuffered\n")
os._exit(7)

# muster: --stdin inherit
# workers: 1
# stdin: "first\nsecond\n\xff\nlast without newline"
import sys
import os

print(sys.stdin.isatty(), sys.stdin.name, sys.stdin.mode, sys.stdin.encoding, sys.stdin.errors, sys.stdin.fileno())
print(ascii(input("prompt> ")))
print(ascii(sys.stdin.readline()))
print(sys.stdin.buffer.read())
print(os.read(0, 10))

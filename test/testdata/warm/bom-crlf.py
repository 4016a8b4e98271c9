import json
import sys
print(ascii("""a
b"""), sys.argv)

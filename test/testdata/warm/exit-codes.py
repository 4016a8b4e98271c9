# workers: 2
# args: 0 3 => 0 3
# args: None text => 0 1
# args: 300 -1 => 44 255
# args: os7 true => 7 1
# args: tuple empty => 1 1
# args: object systemexit => 1 0
import json
import os
import sys

kind = sys.argv[1 + int(os.environ["RANK"])]
print("before", kind)
sys.stderr.write("error stream\n")
class Odd:
    def __str__(self):
        return "an odd object"
if kind == "os7":
    sys.stdout.flush()
    os._exit(7)
elif kind == "systemexit":
    raise SystemExit
values = {"None": None, "text": "the reason", "true": True, "tuple": (1, 2), "empty": "", "object": Odd()}
sys.exit(values[kind] if kind in values else int(kind))

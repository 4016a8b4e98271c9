# args: --lr 0.1 "two words" "" "-c" "ünï" "line\nbreak" "\xff\xfe" --
import sys
import json

print(json.dumps(sys.argv))
print(json.dumps(sys.orig_argv))
print(json.dumps(sys.path))

# options: -I
# options: -E
# options: -S
# options: -ISE
# expect-warm: no
import json
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sorted(sys.modules))

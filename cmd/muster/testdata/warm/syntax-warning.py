# options: -W default => 0 0
# options: -W error => 1 1
# expect-warm: any
import json
print("\d", 1 is 1)

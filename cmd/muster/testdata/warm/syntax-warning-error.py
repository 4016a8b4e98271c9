# options: -W error
# status: 1 1
# expect-warm: no (it does not compile)
import json
print("\d", 1 is 1)

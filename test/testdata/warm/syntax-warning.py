# options: -W default
import json
print("\d", 1 is 1)

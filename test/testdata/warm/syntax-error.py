# status: 1 1
# expect-warm: no (there are no imports to be read)
import json
print("never shown")
def f(:
    pass

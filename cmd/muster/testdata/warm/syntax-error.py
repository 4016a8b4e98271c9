# status: 1 1
# expect-warm: any
import json
print("never shown")
def f(:
    pass

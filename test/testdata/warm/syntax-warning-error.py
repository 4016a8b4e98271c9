# soak: make test has syntax-warning.py
# options: -W error
# status: 1 1
import json
print("\d", 1 is 1)

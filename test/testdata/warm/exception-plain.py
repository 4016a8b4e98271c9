# soak: make test has exception.py
# options:
# options: -u -X dev
# dialect: torchrun
# dialect: run
# status: 1 1
import json
json.loads("{")

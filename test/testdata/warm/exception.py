# workers: 2
# status: 1 1
import json
import os

class Custom(Exception):
    pass

def load(text):
    try:
        return json.loads(text)
    except ValueError as e:
        raise Custom("cannot load", text) from e

def outer():
    try:
        load("{")
    except Custom:
        return (lambda x: x / 0)(1)

try:
    outer()
except ZeroDivisionError:
    if os.environ["RANK"] == "1":
        raise ExceptionGroup("many", [ValueError(1), TypeError("two")])
    raise

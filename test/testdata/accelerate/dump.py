"""Writes the worker's environment and arguments to $DUMP/<rank>.json, or single.json for a plain process."""

import json
import os
import sys

name = os.environ.get("RANK", "single")
with open(os.path.join(os.environ["DUMP"], name + ".json"), "w") as f:
    json.dump({"env": dict(os.environ), "argv": sys.argv}, f)

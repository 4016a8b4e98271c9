"""Says which Python this is, and which torch a script would import here, without importing that."""
import sys

sys.path[:] = [p for p in sys.path if p]  # not the directory that the interpreter stands in: others may write there
import json, os

torch = ""
try:
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is not None and spec.origin:
        about = {}
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as f:
            exec(f.read(), about)
        torch = str(about["__version__"])
except Exception:
    try:
        from importlib.metadata import version

        torch = version("torch")
    except Exception:
        pass
print("\n" + json.dumps({"Python": ".".join(map(str, sys.version_info[:3])), "Torch": torch}))

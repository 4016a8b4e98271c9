"""Checks that this interpreter has the packages of a requirements file, each complete on disk.

Run with the virtual environment's own Python. An install that was interrupted leaves packages without metadata or
files with missing tails; both are found here without importing anything. Prints the first difference and exits 1.
"""
import importlib.metadata
import os
import sys


def difference(requirements):
    for line in open(requirements):
        name, _, want = line.strip().partition("==")
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is missing"
        if have != want:
            return f"{name} is {have}, not {want}"
    for dist in importlib.metadata.distributions():
        for file in dist.files or []:
            path = dist.locate_file(file)
            # Compiled files may be left out or be made anew; scripts carry no size.
            if file.suffix == ".pyc" or file.size is None:
                continue
            if not os.path.exists(path) or os.path.getsize(path) != file.size:
                return f"{path} is incomplete"
    return ""


if __name__ == "__main__":
    found = difference(sys.argv[1])
    if found:
        sys.exit(found)

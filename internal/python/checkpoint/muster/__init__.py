"""What muster offers the programs that it starts. It is on the path of Python where muster put it, and needs nothing."""

#: The name under which pip knows this package. The name muster alone is another project's there.
DISTRIBUTION = "muster-launch"


def __getattr__(name):
    if name == "progress":
        import importlib

        return importlib.import_module(".progress", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""python -m muster: runs the program muster that was installed with this package, also where its directory is not on PATH."""
import errno
import os
import platform
import shutil
import sys
import sysconfig


def _candidates():
    """Where pip, pipx and uv put a wheel's programs: of this environment, of --user, of --target."""
    yield sysconfig.get_path("scripts")
    if os.name + "_user" in sysconfig.get_scheme_names():
        yield sysconfig.get_path("scripts", scheme=os.name + "_user")
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin")


def _find():
    tried = []
    for directory in _candidates():
        path = os.path.join(directory, "muster")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
        tried.append(path)
    sys.exit("muster: error: the program muster, which comes with this package, is at none of: %s\n"
             "muster: hint: install the package anew: python -m pip install --force-reinstall muster-launch" % ", ".join(tried))


def main():
    path = _find()
    first = shutil.which("muster")
    if first and not os.path.samefile(first, path):
        print("muster: warning: the command muster is %s, which stands in front on PATH; this is %s. muster version compares them"
              % (first, path), file=sys.stderr)
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as err:
        hint = ""
        if err.errno == errno.ENOEXEC:
            hint = "\nmuster: hint: it was built for another kind of machine than this one (%s): install the wheel for this one" % platform.machine()
        elif err.errno == errno.EACCES:
            hint = "\nmuster: hint: is its file system mounted noexec?"
        sys.exit("muster: error: cannot execute %s: %s%s" % (path, err.strerror, hint))


if __name__ == "__main__":
    main()

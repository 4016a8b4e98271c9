# options:
# options: -O
# options: -OO -B -W error
# options: -X dev -W ignore
# options: -P -q -s
# options: -u -bb -X utf8 -X other=1
# options: -d -X faulthandler -X no_debug_ranges
import sys
import os
import site
import warnings

for name in ("executable", "_base_executable", "prefix", "exec_prefix", "base_prefix", "base_exec_prefix", "platlibdir", "path", "flags", "_xoptions",
             "warnoptions", "dont_write_bytecode", "pycache_prefix", "implementation", "argv", "orig_argv", "meta_path", "path_hooks", "float_repr_style",
             "hash_info", "builtin_module_names", "stdlib_module_names", "copyright", "tracebacklimit", "last_type", "ps1"):
    value = getattr(sys, name, "missing")
    print(name, sorted(value) if isinstance(value, frozenset) else value)
print(sorted(vars(sys)))
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.getdefaultencoding(), sys.getrecursionlimit(), sys.getswitchinterval())
print(sys.gettrace(), sys.getprofile(), sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth(), sys.is_finalizing())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(sys.exc_info(), __debug__, sys.intern("x"))
print(*sorted(p for p in sys.path_importer_cache if p != os.path.dirname(os.path.abspath(__file__))), sep="\n") # that is looked into by the next import
print([f for f in warnings.filters], warnings.showwarning, warnings._showwarnmsg_impl)
print(site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE, site.PREFIXES, site.getsitepackages(), sorted(vars(site)))
print(os.environ.get("PYTHONPATH"), "sitecustomize" in sys.modules, "usercustomize" in sys.modules)
import faulthandler
print(faulthandler.is_enabled())

"""What a template imports: what the script begins with, or modules that were named, and whether that is still right."""
import os
import sys

from muster_checks import Refusal, flush, listing

ONLY_AST = 0x400  # compile's flag


class Step:
    """One import. label names it for people; soft: a failure is the script's own business, in a try of its."""

    def __init__(self, label, run, soft=False):
        self.label, self.run, self.soft = label, run, soft


def installed(name):
    """Reports whether the top-level module of that name is Python's own or was installed."""
    if name in sys.builtin_module_names:
        return True
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find else None
        if spec is None:
            continue
        if spec.origin in ("built-in", "frozen"):
            return True
        places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
        return all(os.path.realpath(place).startswith(homes()) for place in places)
    return False


def homes():
    """Returns where installed modules are: the standard library, site-packages, dist-packages."""
    site = sys.modules["site"]
    found = {os.path.dirname(os.__file__)}
    found.update(p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages", "lib-dynload"))
    if hasattr(site, "getsitepackages"):
        found.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    return tuple(os.path.realpath(p) + os.sep for p in found)


def type_name(node):
    return type(node).__name__


def type_checking(node):
    test = node.test
    return type_name(test) == "Name" and test.id == "TYPE_CHECKING" or type_name(test) == "Attribute" and test.attr == "TYPE_CHECKING"


def constant(node):
    return type_name(node) in ("Constant", "Num", "Str") or type_name(node) in ("Tuple", "List") and all(map(constant, node.elts))


def prefix(path, main):
    """Returns the imports that a file begins with, as steps, and whether it holds nothing else.

    What ends them is the first statement that could change what an import does, such as os.environ[...] = ..., and the
    first import of a module that was not installed: the project's own code is not run here.
    """
    with open(path, "rb") as f:
        source = f.read()
    if main and sys.version_info >= (3, 9):
        path = os.path.abspath(path)  # as in tracebacks and warnings
    tree = compile(source, path, "exec", ONLY_AST, dont_inherit=True)
    lines = source.decode("utf-8", "replace").splitlines()
    body, steps, namespace = tree.body, [], {"__name__": "__main__" if main else "", "__file__": path}

    def importing(node, soft):
        tops = {alias.name.split(".")[0] for alias in node.names}
        if type_name(node) == "ImportFrom":
            if node.level:
                return False
            tops = {node.module.split(".")[0]}
        if tops == {"__future__"}:
            return True
        if not all(map(installed, tops)):
            return False
        tree.body = [node]
        code = compile(tree, path, "exec", dont_inherit=True)
        label = " ".join(part.strip() for part in lines[node.lineno - 1:(getattr(node, "end_lineno", 0) or node.lineno)])
        steps.append(Step(label, lambda: exec(code, namespace), soft))
        return True

    for node in body:
        kind = type_name(node)
        if kind in ("Import", "ImportFrom"):
            if not importing(node, False):
                return steps, False
        elif kind == "Try" and all(type_name(n) in ("Import", "ImportFrom") for n in node.body) and not node.orelse and not node.finalbody:
            for inner in node.body:
                if not importing(inner, True):
                    return steps, False
        elif kind == "Expr" and constant(node.value) or kind == "If" and type_checking(node) and not node.orelse:
            pass
        elif kind == "Assign" and constant(node.value) and all(type_name(t) == "Name" for t in node.targets):
            pass
        else:
            return steps, False
    return steps, True


def sources(form, name, origin):
    """Returns what runs first: modules to import, and then files, in order."""
    if form in ("script", "run_path"):
        return [], [os.path.join(name, "__main__.py") if os.path.isdir(name) else name]
    if form != "module":
        return [], []
    finder = next(f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder")
    files, places, parts = [], [origin] + sys.path, name.split(".")
    for i in range(len(parts)):
        spec = finder.find_spec(".".join(parts[:i + 1]), places)
        if spec is None or not (spec.origin or "").endswith(".py"):
            return [], files
        files.append(spec.origin)
        places = spec.submodule_search_locations
    if places:
        files += [main for main in (os.path.join(p, "__main__.py") for p in places) if os.path.exists(main)][:1]
    if len(files) > 1 and installed(parts[0]):  # an installed package is imported as a whole
        return [name if places else ".".join(parts[:-1])], files[-1:]
    return [], files


class Imports:
    """What the template imports, and whether it still is what a worker would."""

    def __init__(self, order):
        text = {key: [os.fsdecode(v) for v in order[key]] for key in order if key != "env"}
        self.modules = text.get("module", [])
        self.auto = not self.modules
        self.form, self.name = text["form"][0], text["name"][0]
        self.limit = int(text["limit"][0])
        self.files = {}
        if self.form == "script":
            real = os.path.realpath(self.name)
            self.origin = real if os.path.isdir(real) else os.path.dirname(real)
        else:
            self.origin = os.getcwd()
        self.hides = not getattr(sys.flags, "safe_path", False)

    def steps(self):
        modules, files = (self.modules, []) if not self.auto else sources(self.form, self.name, self.origin)
        steps = [Step("import " + m, lambda m=m: __import__(m)) for m in modules]
        for path in files:
            try:
                more, whole = prefix(path, path == files[-1])
            except (OSError, SyntaxError, ValueError):
                break  # the worker will say so
            steps += more
            if not whole:
                break
        return steps

    def hidden(self):
        """Raises Refusal where a module was imported that the worker would find beside its script instead."""
        if not self.auto or not self.hides:
            return
        names = {n.split(".")[0] for n in listing(self.origin) if n.endswith((".py", ".so")) or os.path.isfile(os.path.join(self.origin, n, "__init__.py"))}
        for name in sorted(names & (set(sys.modules) - self.before)):
            path = getattr(sys.modules[name], "__dict__", {}).get("__file__") or ""
            if not os.path.realpath(path).startswith(self.origin + os.sep):
                raise Refusal("finds the installed module %s where the script finds %s in %s" % (name, name, self.origin))

    def stamp(self):
        """Returns what tells whether the files of the imported modules are as they were."""
        found = {}
        for module in list(sys.modules.values()):
            if module is sys.modules["__main__"]:
                continue
            path = getattr(module, "__dict__", {}).get("__file__") if isinstance(module, type(sys)) else None
            if isinstance(path, str):
                try:
                    st = os.stat(path)
                except OSError:
                    continue  # in an archive
                found[path] = (st.st_mtime_ns, st.st_size, st.st_ino)
        return found

    def run(self, state, tell):
        self.before = set(sys.modules)
        if not self.auto and self.hides:
            sys.path.insert(0, self.origin)
        done, steps = 0, self.steps()
        self.labels = [step.label for step in steps]
        try:
            for step in steps[:self.limit]:
                tell("importing", step.label)
                stop = self.step(step, state, tell)
                done += 1
                if stop:
                    break
        except Refusal as e:
            e.step = str(done)
            raise
        finally:
            if not self.auto and self.hides and self.origin in sys.path:
                sys.path.remove(self.origin)
        self.hidden()
        self.files = self.stamp()
        return done

    def step(self, step, state, tell):
        """Imports, and returns whether that was the last one."""
        failure = None
        try:
            step.run()
        except ImportError as e:
            if not step.soft:
                failure = Refusal("fails: %s: %s" % (type(e).__name__, e))
        except SystemExit as e:
            failure = Refusal("calls sys.exit(%s)" % ("" if e.code is None else repr(e.code)))
        except BaseException as e:
            failure = Refusal("fails: %s: %s" % (type(e).__name__, e))
        else:
            step.soft = False
        if os.getpid() != state.pid:  # a child that the module forked, and that would go on with the script
            tell("refused", "forks, and lets both processes go on", "", str(self.labels.index(step.label)))
            os._exit(0)
        flush()
        if failure:
            raise failure
        state.check()
        return step.soft

    def changed(self):
        """Returns what is not as it was when it was imported, "" for nothing."""
        now = self.stamp()
        for path in self.files:
            if now.get(path) != self.files[path]:
                return path
        if self.auto and [step.label for step in self.steps()] != self.labels:
            return self.name
        try:
            self.hidden()
        except Refusal as e:
            return str(e)
        return ""

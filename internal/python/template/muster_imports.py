"""What a template imports: what the script begins with, or modules that were named, and whether that is still right."""
import os
import sys

from muster_checks import Refusal, Watch, flush

ONLY_AST = 0x400  # compile's flag
FILTERS = "warnings.filters"  # stands among the variables that a script has set for filters of warnings


class Step:
    """One import, or what stands between. label names it for people; soft: a failure is the script's own business, in a
    try of its; module is its index among the modules that were named, "-1" for what the script does."""

    def __init__(self, label, run, soft=False, imports=True, module="-1"):
        self.label, self.run, self.soft, self.imports, self.module = label, run, soft, imports, module


def find(name):
    """Returns the spec of a top-level module, None where it cannot be found."""
    for finder in sys.meta_path:
        look = getattr(finder, "find_spec", None)
        spec = look(name, None) if look else None
        if spec is not None:
            return spec
    return None


def beside(origin, name):
    """Reports whether there is a module of that name in the directory origin."""
    place = os.path.join(origin, name)
    ends = [".py", ".pyc"] + sys.modules["_imp"].extension_suffixes() + [os.sep + "__init__.py"]
    return any(os.path.isfile(place + end) for end in ends)


def shared(origin, name):
    """Reports whether that module is a namespace package, part of which is in the directory origin."""
    spec = find(name)
    return spec is not None and not spec.has_location and os.path.isdir(os.path.join(origin, name))


def installed(name):
    """Reports whether the top-level module of that name is Python's own or was installed."""
    spec = find(name)
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return all(os.path.realpath(place).startswith(homes()) for place in places)


def missing(node, origin):
    """Reports whether an import finds no module at all, neither installed nor beside the script."""
    name = (node.module or "" if type_name(node) == "ImportFrom" else node.names[0].name).split(".")[0]
    return len(node.names) == 1 and name and not getattr(node, "level", 0) and find(name) is None \
        and not os.path.exists(os.path.join(origin, name)) and not beside(origin, name)


class Guard:
    """Finds nothing in the script's directory, and notes what was looked for there and is there: the project's own code is
    not to be run here, and what is found elsewhere would not be what the worker finds."""

    def __init__(self, origin):
        self.origin, self.found = origin, []

    def find_spec(self, name, target=None):
        if beside(self.origin, name.rpartition(".")[2]):
            self.found.append(name)
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        return None

    def invalidate_caches(self):
        pass


def homes():
    """Returns where installed modules are: the standard library, site-packages, dist-packages."""
    return tuple({os.path.realpath(p) + os.sep for p in folders()})


def places():
    """Returns the same as homes, and as they are called where links lead to them."""
    return tuple({p for folder in folders() for p in (os.path.abspath(folder) + os.sep, os.path.realpath(folder) + os.sep)})


def folders():
    site = sys.modules["site"]
    found = {os.path.dirname(os.__file__)}
    found.update(p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages", "lib-dynload"))
    if hasattr(site, "getsitepackages"):
        found.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    return found


def type_name(node):
    return type(node).__name__


def type_checking(node):
    test = node.test
    return type_name(test) == "Name" and test.id == "TYPE_CHECKING" or type_name(test) == "Attribute" and test.attr == "TYPE_CHECKING"


def constant(node):
    kind = type_name(node)
    if kind in ("Tuple", "List", "Set"):
        return all(map(constant, node.elts))
    if kind == "Dict":
        return all(key is not None and constant(key) for key in node.keys) and all(map(constant, node.values))
    if kind == "UnaryOp":
        return constant(node.operand)
    return kind == "Constant" or kind == "BinOp" and constant(node.left) and constant(node.right)


def plain_name(node):
    return type_name(node) == "Name" or type_name(node) == "Tuple" and all(map(plain_name, node.elts))


def harmless(node):
    """Reports whether a statement changes nothing that an import could see."""
    kind = type_name(node)
    if kind == "Expr":
        return constant(node.value)
    if kind == "If":
        return type_checking(node) and not node.orelse
    if kind == "Assign":
        return constant(node.value) and all(map(plain_name, node.targets))
    if kind == "AnnAssign":
        return plain_name(node.target) and type_name(node.annotation) in ("Name", "Constant") and (node.value is None or constant(node.value))
    return kind == "Pass"


def text(node):
    """Returns the string that a node is, None where it is none."""
    value = getattr(node, "value", None) if type_name(node) == "Constant" else None
    return value if isinstance(value, str) else None


def sets_environ(node):
    """Reports whether a statement is os.environ["NAME"] = "text", or the same by setdefault."""
    if type_name(node) == "Assign" and len(node.targets) == 1 and type_name(node.targets[0]) == "Subscript":
        holder, words = node.targets[0].value, [node.targets[0].slice, node.value]
    elif type_name(node) == "Expr" and type_name(node.value) == "Call" and type_name(node.value.func) == "Attribute" \
            and node.value.func.attr == "setdefault" and not node.value.keywords:
        holder, words = node.value.func.value, node.value.args
    else:
        return False
    return type_name(holder) == "Attribute" and holder.attr == "environ" and getattr(holder.value, "id", "") == "os" \
        and len(words) == 2 and all(text(word) is not None for word in words)


def quietly(work):
    """Calls work without the warnings of the compiler: the worker will print them."""
    filters = sys.modules["_warnings"].filters
    filters.insert(0, ("ignore", None, Warning, None, 0))
    try:
        return work()
    finally:
        del filters[0]


def prefix(path, main, origin, hides, varying):
    """Returns the imports that a file begins with, as steps, and the line with which something else begins, "" for none.

    What ends them is the first statement that could change what an import does, and the first import of a module that
    was not installed: the project's own code is not run here. Variables of the environment that are set to a text are
    set here too. They are for what is imported next; the worker gets its environment as it would without us, and sets
    them again.
    """
    if not os.path.isfile(path):  # reading a pipe would take the program away from the worker
        raise OSError("%s is no file" % path)
    with open(path, "rb") as f:
        source = f.read()
    if main:
        path = os.path.abspath(path)  # as in tracebacks and warnings
    tree = quietly(lambda: compile(source, path, "exec", ONLY_AST, dont_inherit=True))
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
        return all(installed(top) and not (hides and (beside(origin, top) or shared(origin, top))) for top in tops) and taking(node, soft)

    def taking(node, soft=False):
        tree.body = [node]
        code = quietly(lambda: compile(tree, path, "exec", dont_inherit=True))
        label = " ".join(part.strip() for part in lines[node.lineno - 1:node.end_lineno])[:100]
        steps.append(Step(label, lambda: exec(code, namespace), soft, type_name(node) in ("Import", "ImportFrom")))
        return True

    for node in body:
        kind = type_name(node)
        if kind in ("Import", "ImportFrom"):
            go_on = importing(node, False)
        elif kind == "Try" and not node.finalbody and all(map(harmless, node.orelse)):
            go_on = all(harmless(inner) or type_name(inner) in ("Import", "ImportFrom") and importing(inner, True) for inner in node.body) \
                or type_name(node.body[0]) in ("Import", "ImportFrom") and missing(node.body[0], origin) and all(
                    harmless(inner) for handler in node.handlers for inner in handler.body)
        elif sets_environ(node):
            default = kind == "Expr" and text(node.value.args[0]) in varying  # set already, in a worker
            go_on = default or taking(node)
        else:
            go_on = harmless(node)
        if not go_on:
            return steps, "%s:%d: %s" % (path, node.lineno, lines[node.lineno - 1].strip()[:100])
    return steps, ""


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

    def __init__(self, order, late):
        """late is the module muster_learn."""
        self.late = late
        text = {key: [os.fsdecode(v) for v in order[key]] for key in order if key != "env"}
        self.modules, self.auto = text.get("module", []), "auto" in text
        self.form, self.name = text["form"][0], text["name"][0]
        self.limit, self.varying = int(text["limit"][0]), text.get("varying", [])
        self.files, self.end = {}, ""
        # What workers have imported late, in their order, and what their script had set by then.
        self.learned, self.assigned, self.told = text.get("learned", []), text.get("assigned", []), 0
        self.late_ones = 0
        if self.form == "script":
            real = os.path.realpath(self.name)
            self.origin = real if os.path.isdir(real) else os.path.dirname(real)
        else:
            self.origin = os.getcwd()
        self.hides = not getattr(sys.flags, "safe_path", False)

    def steps(self):
        steps = [Step("import " + m, lambda m=m: __import__(m), module=str(i)) for i, m in enumerate(self.modules)]
        return (self.prefix()[:self.limit] if self.auto else []) + steps

    def prefix(self):
        modules, files = sources(self.form, self.name, self.origin)
        steps = [Step("import " + m, lambda m=m: __import__(m)) for m in modules]
        for path in files:
            try:
                more, self.end = prefix(path, path == files[-1], self.origin, self.hides, self.varying)
            except (OSError, SyntaxError, ValueError) as e:
                self.end = str(e)  # the worker will say so too
                break
            steps += more
            if self.end:
                break
        if self.limit < len(steps):
            self.end = steps[self.limit].label
        return steps

    def hidden(self):
        """Returns the name of a module that was imported, and that the worker would find beside its script instead."""
        if not self.auto or not self.hides:
            return ""
        for name in sorted({module.partition(".")[0] for module in set(sys.modules) - self.before} & set(sys.modules)):
            file = getattr(sys.modules[name], "__dict__", {}).get("__file__") or ""
            if not file and "__path__" in getattr(sys.modules[name], "__dict__", {}) and os.path.isdir(os.path.join(self.origin, name)):
                return name  # a namespace package, and this is a part of it
            path = os.path.realpath(file)
            ours = os.path.dirname(path) == self.origin or path == os.path.join(self.origin, name, "__init__.py")
            if not ours and beside(self.origin, name):
                return name
        return ""

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
        self.done, skipping, steps = 0, False, self.steps()
        self.labels = [step.label for step in steps]
        self.guard = Guard(self.origin)
        if self.hides:
            sys.path.insert(0, "" if self.form in ("code", "run_path") else self.origin)
            if self.auto:
                sys.path_importer_cache[self.origin] = self.guard
        try:
            for number, step in enumerate(steps):
                if skipping and step.module == "-1":
                    continue
                tell("importing", step.label, step.module)
                self.told += 1
                skipping = self.step(step, number, state, tell)
                self.done += step.imports
                if skipping:
                    self.end = "a failure in: " + step.label
        except Refusal as e:
            e.step = str(number)
            raise
        if self.learned and not skipping:
            self.learn(state, tell)
        if self.hides:
            if sys.path and sys.path[0] in ("", self.origin):
                del sys.path[0]
            sys.path_importer_cache.pop(self.origin, None)
        hidden = self.hidden()
        if hidden:
            raise Refusal("the installed module %s is imported, and the script would find another one in %s" % (hidden, self.origin))
        self.files, self.modules_made = self.stamp(), len(set(sys.modules) - self.before)

    def step(self, step, number, state, tell):
        """Imports, and returns whether the script would not go on to its next import from there."""
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
            tell("refused", "forks, and lets both processes go on", "", str(number))
            os._exit(0)
        flush()
        Watch.check()
        for name in self.guard.found:
            raise Refusal("imports %s, which is in the script's directory" % name)
        if failure:
            raise failure
        state.check()
        return step.soft

    def learn(self, state, tell):
        """Imports what workers have imported after they were forked. They did it when the script had done more; so what could
        come out differently here is left out."""
        late = self.late
        done, allowed, homes = set(sys.modules), set(self.learned), places()
        filtered = FILTERS in self.assigned
        assigned = [name for name in self.assigned if name != FILTERS]
        Watch.now.names |= frozenset(assigned)
        for path in self.learned:
            name = late.module_name(path, homes)
            top = name.partition(".")[0]
            if not name or name in sys.modules or not installed(top) or self.hides and (beside(self.origin, top) or shared(self.origin, top)):
                continue
            tell("importing", "import " + name, "learned " + path)
            loaded = late.libraries() if assigned else set()
            outside = late.Globals(filtered)
            try:
                with outside:  # ends before the state is checked: it holds descriptors
                    failure = self.import_late(name)
                if os.getpid() != state.pid:
                    tell("refused", "forks, and lets both processes go on", "", str(self.told))
                    os._exit(0)
                if failure:
                    raise failure
                Watch.check()
                for found in self.guard.found:
                    raise Refusal("imports %s, which is in the script's directory" % found)
                new = set(sys.modules) - done
                done |= new
                for module in sorted(new):
                    inside = getattr(sys.modules.get(module), "__dict__", {})
                    file = inside.get("__file__")
                    if module == "__mp_main__":
                        continue  # multiprocessing's other name for the script
                    if getattr(inside.get("__spec__"), "origin", "") == "frozen":
                        continue  # the interpreter has it in itself, and a file only for people
                    if isinstance(file, str) and file not in allowed:
                        raise Refusal("imports %s, which the workers did not" % file)
                outside.check()
                more = late.libraries() - loaded
                if assigned and more:
                    raise Refusal("loads %s, and the script had set %s before" % (os.fsdecode(sorted(more)[0]), ", ".join(assigned)))
                state.check()
            except Refusal as e:
                e.step = str(self.told)
                raise
            self.told += 1
            self.late_ones += 1

    @staticmethod
    def import_late(name):
        """Imports a module, and returns why it cannot be shared."""
        try:
            __import__(name)
        except ImportError:
            pass  # as it was in the workers, where something tried it
        except SystemExit as e:
            return Refusal("calls sys.exit(%s)" % ("" if e.code is None else repr(e.code)))
        except BaseException as e:
            return Refusal("fails: %s: %s" % (type(e).__name__, e))
        return None

    def changed(self):
        """Returns what is not as it was when it was imported, "" for nothing."""
        now = self.stamp()
        for path in self.files:
            if now.get(path) != self.files[path]:
                return path
        if self.auto and [step.label for step in self.steps()] != self.labels:
            return self.name
        hidden = self.hidden()
        return hidden and os.path.join(self.origin, hidden)

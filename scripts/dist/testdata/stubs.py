"""stubs.py STUB SOURCE...: fails unless each class and function of the stub has in the sources the parameters, in the order and with
the defaults that the stub says, and the stub has all public methods of its classes."""
import ast
import sys


def signature(function):
    a = function.args
    return [p.arg for p in a.posonlyargs + a.args], [p.arg for p in a.kwonlyargs], [ast.dump(d) for d in a.defaults + a.kw_defaults if d]


def names(tree):
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and (not inner.name.startswith("_") or inner.name == "__init__"):
                    found[node.name + "." + inner.name] = inner
    return found


stub = names(ast.parse(open(sys.argv[1]).read()))
source = {}
for path in sys.argv[2:]:
    source.update(names(ast.parse(open(path).read())))
wrong = []
for name, function in stub.items():
    if name not in source:
        wrong.append(f"{name} is not in the sources")
    elif signature(function) != signature(source[name]):
        wrong.append(f"{name}: {signature(function)} in the stub, {signature(source[name])} in the source")
for name in source:
    if name.split(".")[0] in ("Checkpointer", "ShardedCheckpointer") and name not in stub:
        wrong.append(f"{name} is not in the stub")
sys.exit("\n".join(wrong) or 0)

"""Meta kernels of PyTorch when they are wanted, in the Python processes of tests: torch._meta_registrations is a fifth to
a quarter of the processor time of an import of torch, and says what shape the results of operators without data have.
Tracing, DTensor and the frameworks of others want that, training as most tests do it does not. The module is there, as a
plain import has it; what it holds is loaded at the first look into it, or with the first module of WANTED.

deps.sh puts this file into the environments with PyTorch; it does something under `make test` and the like only, as
muster_tests_gc.py beside it.
"""
import importlib.machinery
import os
import sys
import types

NAME = "torch._meta_registrations"
WANTED = {
    "torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor",
    "accelerate", "colossalai", "deepspeed", "lightning", "megatron", "pytorch_lightning", "transformers",
}


class Later(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        load(self)
        return getattr(self, name)


def load(module):
    module.__class__ = types.ModuleType
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, Finder)]
    module.__loader__.of_the_file.exec_module(module)


class Loader:
    def __init__(self, of_the_file):
        self.of_the_file = of_the_file

    def create_module(self, spec):
        return Later(spec.name)

    def exec_module(self, module):
        pass


class Finder:
    def __init__(self):
        self.wanted = False  # before torch comes to it

    def find_spec(self, name, path=None, target=None):
        if name == NAME and not self.wanted:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Loader(spec.loader)
            return spec
        if name in WANTED:
            self.wanted = True
            if isinstance(sys.modules.get(NAME), Later):
                load(sys.modules[NAME])
        return None


if os.environ.get("MUSTER_TEST_REQUIRE") and os.environ.get("MUSTER_SOAK") != "1":
    sys.meta_path.insert(0, Finder())

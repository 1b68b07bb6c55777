"""Functions of a package that are found in its modules by name, on first use.

pytest imports the replays to collect them, but only the device process may import torch. A replay
writes `impl.rms_norm`; the modules of `opatlas.bench.implementations.torch` are imported when that name is looked up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any


def functions_of_modules(package: str, search_path: Iterable[str], *fallbacks: str) -> Callable[[str], Any]:
    """Returns a module `__getattr__` that finds a name in the package's modules, then in `fallbacks`.

    Args:
        fallbacks: dotted names of what is searched where no module has the name: "torch.nn.functional".

    Raises (when called):
        AttributeError: nothing has the name, two modules define it, or it is the name of a module.
    """

    @cache
    def modules() -> list[ModuleType]:
        return [importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(search_path)]

    @cache
    def find(name: str) -> Any:
        if name.startswith("_"):
            # pytest asks every object of a test module whether it is a fixture, by private names.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if any(module.__name__ == f"{package}.{name}" for module in modules()):
            raise AttributeError(f"{package}.{name} is a module, not a function: give the function another name")
        holders = [module for module in modules() if name in vars(module)]
        if len({id(vars(module)[name]) for module in holders}) > 1:
            places = " and ".join(module.__name__ for module in holders)
            raise AttributeError(f"{package}.{name} is defined twice: in {places}")
        for place in [*holders, *map(pkgutil.resolve_name, fallbacks)]:
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"{package} has no function {name!r}: none of its modules defines {name}")

    return find

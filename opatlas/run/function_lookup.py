"""Finds a function by its name in the modules of a package, which are imported on the first use only.

`opatlas.bench.implementations.torch.NAME` and `opatlas.bench.formulas.NAME` are found so.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

from opatlas.text import suggest


def functions_of_modules(package: str, search_path: Iterable[str], *fallbacks: str) -> Callable[[str], Any]:
    """Returns a module `__getattr__` that finds a name in the package's modules, then in `fallbacks`.

    Args:
        fallbacks: dotted names of modules and classes that are searched last, such as "torch.nn.functional".

    Raises (when called):
        AttributeError: the name is not found, two modules define it, or it is the name of a module.
    """

    @cache
    def modules() -> list[ModuleType]:
        return [importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(search_path)]

    @cache
    def find(name: str) -> Any:
        if name.startswith("_"):
            # pytest asks every object of a test module for private attributes, to find fixtures.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if any(module.__name__ == f"{package}.{name}" for module in modules()):
            raise AttributeError(f"{package}.{name} is a module, not a function: rename the function")
        holders = [module for module in modules() if name in vars(module)]
        if len({id(vars(module)[name]) for module in holders}) > 1:
            names = " and ".join(module.__name__ for module in holders)
            raise AttributeError(f"{package}.{name} is defined twice: in {names}")
        others = [pkgutil.resolve_name(each) for each in fallbacks]
        for module in [*holders, *others]:
            if hasattr(module, name):
                return getattr(module, name)
        known = {each for module in [*modules(), *others] for each in vars(module) if not each.startswith("_")}
        places = ", ".join([package, *fallbacks])
        raise AttributeError(f"there is no function {name} in {places}{suggest(name, known)}")

    return find

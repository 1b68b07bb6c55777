"""A package whose functions are found in its modules on first use.

pytest imports the replays to collect them, but only the device process may import torch. A replay
writes `impl.rms_norm`; the modules of `opatlas.bench.implementations.torch` are imported when that name is looked up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any


def functions_of_modules(package: str, search_path: Iterable[str]) -> Callable[[str], Any]:
    """A module `__getattr__` that finds the public functions defined in a package's modules.

    Raises (when called):
        AttributeError: no module defines the name, or two do.
    """

    @cache
    def contents() -> dict[str, Any]:
        found: dict[str, Any] = {}
        modules = [module_info.name for module_info in pkgutil.iter_modules(search_path)]
        for module_name in modules:
            module = importlib.import_module(f"{package}.{module_name}")
            for name in module.__all__:
                if name in modules:
                    # Once imported, a module is an attribute of its package and would hide the function.
                    raise AttributeError(f"{package}.{name} is both a module and a function: rename the module")
                if name in found:
                    raise AttributeError(
                        f"{package}.{name} is defined twice: in {found[name].__module__} and {module.__name__}"
                    )
                found[name] = getattr(module, name)
        return found

    def find(name: str) -> Any:
        if name.startswith("_"):
            # pytest asks every object of a test module whether it is a fixture, by private names.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return contents()[name]
        except KeyError:
            raise AttributeError(f"no module of {package} defines {name!r} (is it in the module's __all__?)") from None

    return find
